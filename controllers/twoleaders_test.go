package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestFault21TwoLeadersExpireTheSameHold(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	leaders := []*instance{startController(t, ns), startController(t, ns)}
	holder := newHolder(t, ns, "service", 3)
	next := untilClaim(t, claimOn(t, ns, "next", "service", nil), v1alpha1.ReasonWaiting)
	codes := sendTogether(t, leaders, writes(http.MethodPut, "/distlocks/service/status"))
	if !slices.Equal(codes, []int{http.StatusOK, http.StatusConflict}) {
		t.Errorf("the expiries were answered %v", codes)
	}
	token := untilClaim(t, next, v1alpha1.ReasonGranted).Status.FencingToken
	must(t, admin.Delete(t.Context(), next))
	if l := untilFree(t, ns, "service"); l.Status.FencingToken != token || token <= holder.token {
		t.Errorf("tokens: lock %d, claim %d, expired hold %d", l.Status.FencingToken, token, holder.token)
	}
}

func TestFault21TwoLeadersResumeTheSameJob(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	leaders := []*instance{startController(t, ns), startController(t, ns)}
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	codes := sendTogether(t, leaders, writes(http.MethodPatch, "/jobs/a"))
	if !slices.Equal(codes, []int{http.StatusOK, http.StatusUnprocessableEntity}) {
		t.Errorf("the resumes were answered %v", codes)
	}
	setPhase(t, running(t, a), corev1.PodSucceeded)
	untilFree(t, ns, "nightly")
	if pods := podsOf(t, a); len(pods) != 1 {
		t.Errorf("%d pods, want one", len(pods))
	}
}

// sendTogether holds up the same write of all instances until each of them is
// about to send it, and returns the answers, in numerical order.
func sendTogether(t *testing.T, all []*instance, match func(*http.Request) bool) []int {
	t.Helper()
	var reached []<-chan struct{}
	var letGo []func()
	for _, i := range all {
		r, l := i.holdUp(match)
		t.Cleanup(l)
		reached, letGo = append(reached, r), append(letGo, l)
	}
	for _, r := range reached {
		await(t, r, "a write")
	}
	var answers []<-chan int
	for _, i := range all {
		answers = append(answers, i.answers(match))
	}
	for _, l := range letGo {
		l()
	}
	var codes []int
	for _, a := range answers {
		codes = append(codes, await(t, a, "an answer"))
	}
	slices.Sort(codes)
	return codes
}

// Jobs, bound claims and dead waiters all want one lock, and two controllers
// serve them, each as if it were alone.
func TestFault21TwoLeadersServeABusyLock(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	startController(t, ns)
	runPods(t, ns)
	endGrantedClaims(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	holder := &holder{ns: ns, lock: "nightly", lease: 3} // dead from the beginning
	holder.takeAnew(t)
	var owners []string
	for i := range 5 {
		owners = append(owners,
			ownerOf(jobOn(t, ns, fmt.Sprintf("job-%d", i), "nightly")),
			"claim/"+string(claimOn(t, ns, fmt.Sprintf("bound-%d", i), "nightly", nil).UID))
	}
	for i := range 2 {
		owners = append(owners, "claim/"+string(claimOn(t, ns, fmt.Sprintf("dead-%d", i), "nightly", new(int32(3))).UID))
	}

	granted := map[string][]int64{}
	untilLock(t, ns, "nightly", "free after all had it", func(l *v1alpha1.DistLock) bool {
		for _, h := range l.Status.Holders {
			if !slices.Contains(granted[h.Owner], h.FencingToken) {
				granted[h.Owner] = append(granted[h.Owner], h.FencingToken)
			}
		}
		return len(l.Status.Holders) == 0 && len(granted) > len(owners)
	})
	for _, owner := range owners {
		if len(granted[owner]) != 1 {
			t.Errorf("%s was granted the lock with tokens %v, want one", owner, granted[owner])
		}
	}
	var jobs batchv1.JobList
	must(t, admin.List(t.Context(), &jobs, client.InNamespace(ns)))
	for _, j := range jobs.Items {
		untilJob(t, ns, j.Name, "completed", completed)
		if n := len(podsOf(t, &j)); n != 1 {
			t.Errorf("Job %s has %d pods, want one", j.Name, n)
		}
	}
}

// runPods plays a kubelet under which every pod succeeds at once.
func runPods(t *testing.T, ns string) {
	t.Helper()
	onEach(t, ns, &corev1.PodList{}, func(ctx context.Context, p *corev1.Pod) error {
		if p.Spec.NodeName != "" || p.DeletionTimestamp != nil {
			return nil
		}
		phase := func(phase string) error {
			return admin.Status().Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"`+phase+`"}}`)))
		}
		bind := admin.SubResource("binding").Create(ctx, p.DeepCopy(), &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}})
		return errors.Join(bind, phase("Running"), phase("Succeeded"))
	})
}

// endGrantedClaims plays the users of bound claims, who are done at once.
func endGrantedClaims(t *testing.T, ns string) {
	t.Helper()
	onEach(t, ns, &v1alpha1.LockClaimList{}, func(ctx context.Context, c *v1alpha1.LockClaim) error {
		if len(c.Status.Conditions) == 0 || c.Status.Conditions[0].Status != metav1.ConditionTrue {
			return nil
		}
		return client.IgnoreNotFound(admin.Delete(ctx, c))
	})
}

// onEach does something about each version of each object in a namespace that is
// not its last, until the test ends.
func onEach[T client.Object](t *testing.T, ns string, list client.ObjectList, do func(context.Context, T) error) {
	t.Helper()
	w, err := admin.Watch(t.Context(), list, client.InNamespace(ns))
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			o, ok := e.Object.(T)
			if !ok || e.Type == watch.Deleted {
				continue
			}
			if err := do(t.Context(), o); err != nil && t.Context().Err() == nil {
				t.Errorf("%s: %v", o.GetName(), err)
			}
		}
	}()
	t.Cleanup(func() { w.Stop(); <-done })
}
