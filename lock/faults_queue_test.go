package lock_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

// inPod makes a pod and has the clients made from now on run in it.
func inPod(t *testing.T, ns, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/work"}}},
	}
	must(t, admin.Create(t.Context(), pod))
	t.Setenv("POD_NAMESPACE", ns)
	t.Setenv("POD_NAME", name)
	t.Setenv("POD_UID", string(pod.UID))
	return pod
}

// The head's pod is deleted, and its claim with it.
func TestFault16AWaiterWhosePodIsGoneIsPassedOver(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3600}) // nothing expires here
	startController(t)
	holder := newProgram(t, ns)
	h, err := holder.Acquire(t.Context(), "ledger")
	must(t, err)
	behind := newProgram(t, ns)
	pod := inPod(t, ns, "head")
	head := newProgram(t, ns)
	dead := acquire(t, head, "ledger")
	until(t, l, "queued", queued(1))
	waiting := acquire(t, behind, "ledger")
	until(t, l, "queued", queued(2))
	head.behave(unreachable)
	must(t, admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	until(t, l, "passed over", queued(1))
	must(t, h.Release(t.Context()))
	next := waiting.hold(t)
	if now := read(t, l); now.Status.Holders[0].Owner != next.Owner() {
		t.Errorf("got %+v", now.Status)
	}
	dead.stillWaits(t)
	head.behave(nil)
	dead.cancel()
	dead.result(t)
}

// A client in a pod is known by it: another pod of that name is another one.
func TestFault26APodThatIsMadeAnewIsAnotherHolder(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	pod := inPod(t, ns, "worker-0")
	first, err := newProgram(t, ns).Acquire(t.Context(), "ledger")
	must(t, err)
	stored := read(t, l).Status.Holders[0]
	want := v1alpha1.ObjectRef{APIVersion: "v1", Kind: "Pod", Name: "worker-0", UID: pod.UID}
	if !strings.HasPrefix(stored.Owner, "pod/worker-0/"+string(pod.UID)+"/") || stored.Ref == nil || *stored.Ref != want {
		t.Errorf("held by %s, of %+v", stored.Owner, stored.Ref)
	}
	must(t, admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	inPod(t, ns, "worker-0")
	again := newProgram(t, ns)
	_, err = again.TryAcquire(t.Context(), "ledger")
	wantHeldBy(t, err, first)
	waiting := acquire(t, again, "ledger")
	again.awaitRequest(t, "WATCH distlocks")
	enqueue(t, l)
	waiting.stillWaits(t)
	must(t, first.Check(t.Context()))
	must(t, first.Release(t.Context()))
	next := waiting.result(t)
	must(t, next.err)
	if next.Token() <= first.Token() || next.Owner() == first.Owner() {
		t.Errorf("%s with token %d after %s with token %d", next.Owner(), next.Token(), first.Owner(), first.Token())
	}
}

func TestFault19OfFiftyOneWins(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	const n = 50
	all := make([]*program, n)
	for i := range all {
		all[i] = newProgram(t, ns)
	}
	start := make(chan struct{})
	var trying sync.WaitGroup
	var mu sync.Mutex
	var won []*lock.Hold
	for _, p := range all {
		trying.Go(func() {
			<-start
			h, err := p.TryAcquire(t.Context(), "ledger")
			if err != nil {
				wantIs(t, err, lock.ErrHeld)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			won = append(won, h)
		})
	}
	close(start)
	trying.Wait()
	if now := read(t, l); len(won) != 1 || now.Status.Holders[0].Owner != won[0].Owner() {
		t.Fatalf("%d won: %+v", len(won), now.Status)
	}
	asked, most := 0, 0
	for _, p := range all {
		k := len(p.taken())
		asked, most = asked+k, max(most, k)
	}
	t.Logf("%d requests in all, at most %d by one", asked, most)
	if most > 3 { // a read, a write that conflicts, and a read
		t.Errorf("%d requests by one", most)
	}
}

// The controller is away, and no releaser knows of the waiter.
func TestFault43AWaiterOutsideTheStoredQueueGetsIn(t *testing.T) {
	for name, watches := range map[string]behaviour{
		"its watch shows nothing": nil, // it is for grants to itself only
		"its watch is cut": func(_ http.RoundTripper, req *http.Request) (*http.Response, error) {
			return answered(req, http.StatusOK, http.Header{"Content-Type": []string{"application/json"}}), nil
		},
		"its watch is refused for a while": refuses,
	} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 6})
			p, q := newProgram(t, ns), newProgram(t, ns)
			h, err := p.Acquire(t.Context(), "ledger")
			must(t, err)
			if watches != nil {
				q.behave(only("WATCH distlocks", watches))
			}
			waiting := acquire(t, q, "ledger")
			q.awaitRequests(t, "GET distlocks", 2) // one to try, and one after the watch began
			eventually(t, "waiting", func() bool { return q.settled("GET distlocks") })
			must(t, h.Release(t.Context()))
			freed := time.Now()
			got := waiting.result(t)
			must(t, got.err)
			t.Logf("in after %s", got.at.Sub(freed))
			if got.at.Sub(freed) > 6*time.Second {
				t.Errorf("in after %s, with a lease of 6s", got.at.Sub(freed))
			}
			must(t, got.Release(t.Context()))
			untilNoClaims(t, ns)
		})
	}
}

// A waiter that is cut off for ever pays for itself, once.
func TestFault44AClaimWhoseOwnerIsGoneIsGrantedOnce(t *testing.T) {
	for name, away := range map[string]bool{"with the controller": false, "without the controller": true} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
			if !away {
				startController(t)
			}
			p, dead, q := newProgram(t, ns), newProgram(t, ns), newProgram(t, ns)
			h, err := p.Acquire(t.Context(), "ledger")
			must(t, err)
			gone := acquire(t, dead, "ledger")
			dead.awaitRequest(t, "WATCH distlocks")
			var claims v1alpha1.LockClaimList
			must(t, admin.List(t.Context(), &claims, client.InNamespace(ns)))
			if away {
				enqueue(t, l)
			}
			until(t, l, "queued", queued(1))
			dead.behave(refuses) // it cannot leave
			gone.cancel()
			must(t, h.Release(t.Context()))
			granted := until(t, l, "granted", func(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 1 }).Status.Holders[0]
			if granted.Owner != "claim/"+string(claims.Items[0].UID) {
				t.Fatalf("granted to %+v", granted)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			next, err := q.Acquire(ctx, "ledger")
			must(t, err)
			var left v1alpha1.LockClaimList
			must(t, admin.List(t.Context(), &left, client.InNamespace(ns)))
			for _, c := range left.Items {
				if c.UID == claims.Items[0].UID {
					t.Errorf("its claim is still there: %+v", c)
				}
			}
			must(t, next.Release(t.Context()))
			if now := until(t, l, "free", free); now.Status.FencingToken != next.Token() {
				t.Errorf("granted again, with token %d", now.Status.FencingToken)
			}
			dead.behave(nil)
			gone.result(t)
		})
	}
}
