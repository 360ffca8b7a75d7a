package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestALockIsDescribedWithHoldersQueueAndEvents(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	jobOn(t, ns, "first", "ledger", "sleep 3600", 0)
	held := untilLock(t, ns, "ledger", "held", heldBy("first"))
	claimOn(t, ns, "second", "ledger")
	untilLock(t, ns, "ledger", "waited for by one", waiting(1))
	jobOn(t, ns, "third", "ledger", "true", 0)
	untilLock(t, ns, "ledger", "waited for by two", func(l *v1alpha1.DistLock) bool {
		return l.Status.Waiting == 2 || len(l.Status.Queue) == 2
	})

	var out string
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		out = distlock(t, ns, "describe", "ledger").ok(t).out //nolint:contextcheck // it has the test's
		return strings.Contains(out, "WaitingForLock"), nil   // events come after the write that they tell of
	})
	if err != nil {
		t.Fatalf("the events never showed; prints\n%s", out)
	}
	for _, want := range []string{
		"Name: ledger", "Namespace: " + ns, fmt.Sprintf("Fencing Token: %d", held.Status.FencingToken), "Lease: 15s",
		fmt.Sprintf("Job/first Exclusive %d", held.Status.FencingToken), "with its Job no " + held.Status.Holders[0].Owner,
		"Queue: 2 waiting", "1 LockClaim/second Exclusive", "2 Job/third Exclusive",
		"Normal LockGranted", "Job/first Holds DistLock ledger", "Job/third Waits for DistLock ledger",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("does not say %q:\n%s", want, out)
		}
	}
	if out := distlock(t, ns, "describe", "ledger", "--show-events=false").ok(t).out; strings.Contains(out, "Events:") {
		t.Errorf("shows events:\n%s", out)
	}
}

func TestALeasedAndRevokedHoldIsDescribedAsSuch(t *testing.T) {
	ns := testEnv.Namespace(t)
	now := metav1.NewMicroTime(time.Now())
	l := lockIn(t, ns, "ledger")
	l.Status = v1alpha1.DistLockStatus{FencingToken: 1 << 40, Holders: []v1alpha1.Hold{{
		Owner: "somebody", Mode: v1alpha1.Exclusive, Permits: 1, FencingToken: 1 << 40, AcquireTime: now, RenewTime: now, RevokeTime: &now,
		LeaseDurationSeconds: new(int32(3600)), ExpiryTime: new(metav1.NewMicroTime(now.Add(time.Hour))),
	}}}
	must(t, admin.Status().Update(t.Context(), l))
	out := distlock(t, ns, "describe", "ledger").ok(t).out
	for _, want := range []string{"somebody Exclusive 1099511627776", "in 59m", "s ago", "Queue: <none>", "Events: <none>"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("does not say %q:\n%s", want, out)
		}
	}
	distlock(t, ns, "list").ends(t, 0, "somebody (revoked)", "in 59m")
}

func TestALockThatIsNotThereHasAnExitCode(t *testing.T) {
	for _, verb := range []string{"describe", "revoke", "acquire", "raise"} {
		distlock(t, testEnv.Namespace(t), verb, "none-such").ends(t, exitNoLock, `no DistLock "none-such"`, "-n")
	}
}

// The stored queue has 32; the others stand behind it.
func TestTheLineGoesOnBehindTheStoredQueue(t *testing.T) {
	at := func(second int64) metav1.Time { return metav1.Unix(1000+second, 0) }
	job := func(name string, second int64, annotations ...string) batchv1.Job {
		j := batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: at(second)}}
		j.Annotations = map[string]string{v1alpha1.LockAnnotation: "ledger"}
		for i := 0; i < len(annotations); i += 2 {
			j.Annotations[annotations[i]] = annotations[i+1]
		}
		return j
	}
	finished := job("finished", 0)
	finished.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: "True"}}
	other := job("other", 0, v1alpha1.LockAnnotation, "another")
	jobs := []batchv1.Job{
		job("late", 9), job("stored", 3), job("holder", 1), finished, other,
		job("revoked", 2, v1alpha1.QueuedAtAnnotation, "1970-01-01T00:16:48.000000Z"), // second 8
		job("b", 5), job("a", 5), job("greedy", 1, v1alpha1.PermitsAnnotation, "9"),
	}
	claims := []v1alpha1.LockClaim{
		{ObjectMeta: metav1.ObjectMeta{Name: "claim", UID: "c", CreationTimestamp: at(7)}, Spec: v1alpha1.LockClaimSpec{LockName: "ledger"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "lost", UID: "d"}, Spec: v1alpha1.LockClaimSpec{LockName: "ledger"}, Status: v1alpha1.LockClaimStatus{FencingToken: 3}},
	}
	l := &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Name: "ledger"}, Spec: v1alpha1.DistLockSpec{Capacity: new(int32(2))}}
	l.Status.Holders = []v1alpha1.Hold{{Owner: jobOwner(&jobs[2]), Mode: v1alpha1.Shared, Permits: 2}}
	l.Status.Queue = []v1alpha1.Waiter{jobWaiter(l.Spec, &jobs[1])}

	line, impossible := lineOf(l, jobs, claims)
	var order []string
	for _, w := range line {
		order = append(order, w.Ref.Name)
	}
	if got, want := strings.Join(order, " "), "stored a b claim revoked late"; got != want {
		t.Errorf("the line is %s, want %s", got, want)
	}
	if len(impossible) != 1 || impossible[0].Ref.Name != "greedy" {
		t.Errorf("impossible are %v, want greedy", impossible)
	}
	if got := line[0].since; !got.Equal(at(3).Time) {
		t.Errorf("the first has waited since %s", got)
	}
}
