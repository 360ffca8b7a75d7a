package lock

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// serviceAccountDir is where a pod finds its namespace and its token.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// Variables that the downward API may set, for pods without a service account token.
const (
	envNamespace = "POD_NAMESPACE"
	envPodName   = "POD_NAME"
	envPodUID    = "POD_UID"
)

// identity is who this process is.
type identity struct {
	namespace string // of the pod; empty outside of one
	pod       string
	uid       types.UID
	name      string // for people: the pod, or user and host
}

// whoAmI looks at the pod's service account token and at the downward API.
func whoAmI(dir string, getenv func(string) string) identity {
	me := identity{namespace: getenv(envNamespace), pod: getenv(envPodName), uid: types.UID(getenv(envPodUID))}
	if me.namespace == "" || me.pod == "" || me.uid == "" {
		if token, err := os.ReadFile(filepath.Join(dir, "token")); err == nil {
			me.fromToken(string(token))
		}
	}
	if me.namespace == "" {
		if ns, err := os.ReadFile(filepath.Join(dir, "namespace")); err == nil {
			me.namespace = strings.TrimSpace(string(ns))
		}
	}
	if me.pod != "" && me.uid != "" {
		me.name = fmt.Sprintf("pod/%s/%s", me.pod, me.uid)
		return me
	}
	me.pod, me.uid = "", ""
	host, _ := os.Hostname()
	me.name = "client/" + host
	if u, err := user.Current(); err == nil {
		me.name = fmt.Sprintf("client/%s@%s", u.Username, host)
	}
	return me
}

// fromToken takes what a bound service account token says of its pod. It is this
// process's own token, and says nothing to anybody else; it is not verified.
func (me *identity) fromToken(token string) {
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		return
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return
	}
	var claims struct {
		Kubernetes struct {
			Namespace string `json:"namespace"`
			Pod       struct {
				Name string    `json:"name"`
				UID  types.UID `json:"uid"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	if json.Unmarshal(payload, &claims) != nil || claims.Kubernetes.Pod.Name == "" {
		return
	}
	me.namespace, me.pod, me.uid = claims.Kubernetes.Namespace, claims.Kubernetes.Pod.Name, claims.Kubernetes.Pod.UID
}

// newOwner is the unique name of one acquisition.
func (me identity) newOwner() string {
	name := me.name
	if len(name) > 280 { // of 320
		name = name[:280]
	}
	return name + "/" + string(uuid.NewUUID())
}

// ref is the pod, for a lock in its own namespace; else nil.
func (me identity) ref(namespace string) *v1alpha1.ObjectRef {
	if me.uid == "" || me.namespace != namespace {
		return nil
	}
	return &v1alpha1.ObjectRef{APIVersion: "v1", Kind: "Pod", Name: me.pod, UID: me.uid}
}

// owns makes the pod the owner of a claim, which so goes with it.
func (me identity) owns(namespace string) []metav1.OwnerReference {
	ref := me.ref(namespace)
	if ref == nil {
		return nil
	}
	return []metav1.OwnerReference{{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, UID: ref.UID}}
}
