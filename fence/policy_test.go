package fence_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/test/env"
)

const (
	noToken = "null"
	takesIt = "a write carries the fencing token"
	isStale = "stale fencing token 6, the object has seen 7"
)

// patch is a merge patch of annotations that names no version, as kubectl patch
// sends it. Token is JSON.
func (c configMap) patch(t *testing.T, token string) error {
	t.Helper()
	by := strings.Trim(token, `"`)
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}},"data":{"by":%q}}`, v1alpha1.FenceAnnotation, token, by)
	_, err := c.Patch(t.Context(), objectName, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	return err
}

// expect fails the test unless err is a refusal that says want, or nil where want is
// empty.
func expect(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" && err != nil {
		t.Errorf("refused: %v", err)
	}
	if want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want)) {
		t.Errorf("got %v, want a refusal with %q", err, want)
	}
}

func TestTheAPIServerRefusesALowerToken(t *testing.T) {
	c := newConfigMap(t, true)
	for _, row := range []struct{ token, want, bears string }{
		{noToken, "", ""}, // none before and after
		{`"7"`, "", "7"},
		{`"7"`, "", "7"},
		{`"6"`, isStale, "7"},
		{noToken, takesIt, "7"},
		{`""`, `"" is not a fencing token`, "7"},
		{`"0"`, `"0" is not a fencing token`, "7"},
		{`"-8"`, `"-8" is not a fencing token`, "7"},
		{`"08"`, `"08" is not a fencing token`, "7"},
		{`"8x"`, `"8x" is not a fencing token`, "7"},
		{`"9007199254740992"`, `"9007199254740992" is not a fencing token`, "7"},
		{`"99999999999999999999"`, "is not a fencing token", "7"},
		{`"10"`, "", "10"}, // as numbers, not as text
		{`"9"`, "stale fencing token 9, the object has seen 10", "10"},
		{`"9007199254740991"`, "", "9007199254740991"},
	} {
		expect(t, c.patch(t, row.token), row.want)
		c.wantToken(t, row.bears)
	}
}

func TestTheAPIServerRefusesToTakeLabelAndTokenAwayTogether(t *testing.T) {
	c := newConfigMap(t, true)
	expect(t, c.patch(t, `"7"`), "")

	object := c.read(t)
	object.Labels, object.Annotations, object.ResourceVersion = nil, nil, "" // an unconditional write of a manifest
	_, err := c.Update(t.Context(), object, metav1.UpdateOptions{})
	expect(t, err, takesIt)
	object.Annotations = map[string]string{v1alpha1.FenceAnnotation: "6"}
	_, err = c.Update(t.Context(), object, metav1.UpdateOptions{})
	expect(t, err, isStale)

	// The way out.
	object.Annotations[v1alpha1.FenceAnnotation] = "7"
	_, err = c.Update(t.Context(), object, metav1.UpdateOptions{})
	expect(t, err, "")
	expect(t, c.patch(t, `"1"`), "")
}

func TestTheAPIServerLeavesOtherObjectsAlone(t *testing.T) {
	c := newConfigMap(t, false)
	for _, token := range []string{`"7"`, `"6"`, `"x"`, noToken} {
		expect(t, c.patch(t, token), "")
	}
}

func TestAFencedObjectIsCreatedWithATokenOrWithoutOne(t *testing.T) {
	ns := testEnv.Namespace(t)
	for token, want := range map[string]string{"": "", "7": "", "seven": `"seven" is not a fencing token`} {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, GenerateName: "created-", Labels: map[string]string{v1alpha1.FencedLabel: "true"},
		}}
		if token != "" {
			object.Annotations = map[string]string{v1alpha1.FenceAnnotation: token}
		}
		expect(t, testEnv.Client().Create(t.Context(), object), want)
	}
}

// What was no token before the policy came: it stops nobody, and is mended by a token.
func TestAnAnnotationThatWasNoTokenCanBeMended(t *testing.T) {
	c := newConfigMap(t, false)
	expect(t, c.patch(t, `"seven"`), "")
	object := c.read(t)
	object.Labels = map[string]string{v1alpha1.FencedLabel: "true"}
	_, err := c.Update(t.Context(), object, metav1.UpdateOptions{})
	expect(t, err, "")
	expect(t, c.patch(t, `"eight"`), `"eight" is not a fencing token`)
	expect(t, c.patch(t, noToken), takesIt)
	expect(t, c.patch(t, `"7"`), "")
}

// Controllers write status and metadata of objects without a thought for tokens.
func TestWritesThatLeaveTheTokenAsItIsPass(t *testing.T) {
	ns := testEnv.Namespace(t)
	labels := map[string]string{"app": "fenced", v1alpha1.FencedLabel: "true"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: "fenced", Labels: labels, Annotations: map[string]string{v1alpha1.FenceAnnotation: "7"},
		},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main"}}},
			},
		},
	}
	expect(t, testEnv.Client().Create(t.Context(), deployment), "")
	deployment.Status.ObservedGeneration = deployment.Generation
	expect(t, testEnv.Client().Status().Update(t.Context(), deployment), "")
	lower := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"fence.distlock.dev/token":"6"}}}`))
	expect(t, testEnv.Client().Patch(t.Context(), deployment.DeepCopy(), lower), isStale)
	expect(t, testEnv.Client().Status().Patch(t.Context(), deployment.DeepCopy(), lower), isStale)
	expect(t, testEnv.Client().Delete(t.Context(), deployment), "") // a limit, and documented
}

func TestInAnyOrderOfPatchesTheTokensOnlyRise(t *testing.T) {
	c := newConfigMap(t, true)
	inAnyOrder(t, c, func(token int64) error { return c.patch(t, fmt.Sprintf("%q", fmt.Sprint(token))) }, apierrors.IsForbidden)
}

func TestThePolicyIsNotPartOfTheInstallation(t *testing.T) {
	out, err := testEnv.Kubectl(t.Context(), "kustomize", env.Root(t)+"/config/default")
	if err != nil || !strings.Contains(string(out), "distlock-guard-locks") || strings.Contains(string(out), "distlock-fence") {
		t.Errorf("config/default: %v, %d bytes", err, len(out))
	}
}

func TestThePagesCommandsDoWhatItSays(t *testing.T) {
	ns := testEnv.Namespace(t)
	root := env.Root(t)
	testEnv.Shell(t, root, ns, env.Commands(t, "docs/fencing.md", "install"))
	testEnv.Shell(t, root, ns, "kubectl apply -f config/samples/fenced.yaml")
	write := "total=100 DISTLOCK_FENCING_TOKEN=%s\n" + env.Commands(t, "docs/fencing.md", "patch")
	testEnv.Shell(t, root, ns, fmt.Sprintf(write, "7"))
	out, err := testEnv.TryShell(t.Context(), t, root, ns, fmt.Sprintf(write, "6"))
	if err == nil || !strings.Contains(out, isStale) {
		t.Errorf("token 6: %v\n%s", err, out)
	}
	if text, err := os.ReadFile(filepath.Join(root, "docs", "fencing.md")); err != nil || !strings.Contains(oneLine(string(text)), oneLine(out)) {
		t.Errorf("the page does not show what is said (%v): %s", err, out)
	}
	testEnv.Shell(t, root, ns, "kubectl apply -f config/samples/fenced.yaml") // leaves token and data as they are
	got := testEnv.Shell(t, root, ns, `kubectl get configmap report -o jsonpath='{.metadata.annotations.fence\.distlock\.dev/token} {.data.total}'`)
	if got != "7 100" {
		t.Errorf("the object has %q", got)
	}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
