package lock

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// inDir is a directory of a service account with a token and a namespace.
func inDir(t *testing.T, claims string) string {
	t.Helper()
	dir := t.TempDir()
	token := "header." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".signature\n"
	for name, text := range map[string]string{"token": token, "namespace": "mounted\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestAPodFindsOutWhichItIs(t *testing.T) {
	const bound = `{"kubernetes.io":{"namespace":"reports","pod":{"name":"worker-0","uid":"u-1"}}}`
	downward := map[string]string{envNamespace: "reports", envPodName: "worker-0", envPodUID: "u-1"}
	inPod := identity{namespace: "reports", pod: "worker-0", uid: "u-1", name: "pod/worker-0/u-1"}
	for name, c := range map[string]struct {
		dir  string
		env  map[string]string
		want identity // without a name: that of user and host
	}{
		"by its token":             {inDir(t, bound), nil, inPod},
		"by the downward API":      {t.TempDir(), downward, inPod},
		"by half of it, and token": {inDir(t, bound), map[string]string{envPodName: "hostname"}, inPod},
		"not by half of it":        {t.TempDir(), map[string]string{envNamespace: "reports", envPodName: "worker-0"}, identity{namespace: "reports"}},
		"not by an old token":      {inDir(t, `{"sub":"system:serviceaccount:reports:default"}`), nil, identity{namespace: "mounted"}},
		"not by a broken token":    {inDir(t, `{`), nil, identity{namespace: "mounted"}},
		"not outside of a pod":     {t.TempDir(), nil, identity{}},
	} {
		got := whoAmI(c.dir, func(key string) string { return c.env[key] })
		if c.want.name == "" {
			if !strings.HasPrefix(got.name, "client/") {
				t.Errorf("%s: name %q", name, got.name)
			}
			got.name = ""
		}
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestOwnersAreUniqueAndFit(t *testing.T) {
	me := identity{name: "client/" + strings.Repeat("n", 400)}
	a, b := me.newOwner(), me.newOwner()
	if a == b || len(a) > 320 {
		t.Errorf("%q and %q", a, b)
	}
	if name := newClaimName(strings.Repeat("l", 199) + "." + strings.Repeat("l", 53)); len(name) > 253 || strings.Contains(name, ".-") {
		t.Errorf("a claim named %q", name)
	}
}

func TestOnlyALockInItsOwnNamespaceNamesThePod(t *testing.T) {
	me := identity{namespace: "reports", pod: "worker-0", uid: "u-1"}
	if ref := me.ref("reports"); ref == nil || ref.Kind != "Pod" || ref.Name != "worker-0" || ref.UID != "u-1" {
		t.Errorf("got %+v", ref)
	}
	if me.ref("elsewhere") != nil || me.owns("elsewhere") != nil || (identity{namespace: "reports"}).ref("reports") != nil {
		t.Error("a pod is named in a namespace that it is not in")
	}
	if owners := me.owns("reports"); len(owners) != 1 || owners[0].UID != "u-1" {
		t.Errorf("got %+v", owners)
	}
}

func TestAClientFindsItsNamespace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	k := clientcmdapi.NewConfig()
	k.Clusters["c"] = &clientcmdapi.Cluster{Server: "http://127.0.0.1:1"}
	k.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", Namespace: "of-the-context"}
	k.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*k, path); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
	for want, c := range map[string]struct {
		config  *rest.Config
		options []ClientOption
		env     string
	}{
		"of-the-context": {nil, nil, ""},
		"named":          {nil, []ClientOption{Namespace("named")}, "of-the-pod"},
		"of-the-pod":     {&rest.Config{Host: "http://127.0.0.1:1"}, nil, "of-the-pod"},
	} {
		t.Setenv(envNamespace, c.env)
		client, err := NewClient(c.config, c.options...)
		if err != nil {
			t.Fatal(err)
		}
		if client.namespace != want {
			t.Errorf("got %q, want %q", client.namespace, want)
		}
		if err := client.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	if _, err := NewClient(nil, Namespace("named")); err == nil || !strings.Contains(err.Error(), "kubeconfig") {
		t.Errorf("without a kubeconfig: %v", err)
	}
}
