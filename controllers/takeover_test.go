package controllers_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/process"
	"github.com/distlock-dev/distlock/test/env"
)

// slack is how late, beyond lease and margin, an expiry may come on a busy
// machine.
const slack = 10 * time.Second

// expiresAfter is a lease and its margin.
func expiresAfter(leaseSeconds int32) time.Duration {
	lease := time.Duration(leaseSeconds) * time.Second
	return lease + max(lease/10, 250*time.Millisecond)
}

// inTime fails the test unless an expiry came after lease and margin, and not
// long after.
func inTime(t *testing.T, took, expected time.Duration) {
	t.Helper()
	if took < expected || took > expected+slack {
		t.Errorf("it took %v, want %v and at most %v more", took, expected, slack)
	}
}

// Of two replicas with an election between them the leader is killed in the
// middle of a dead holder's lease: the other goes on with its own count.
func TestAFailoverCostsNoLease(t *testing.T) {
	t.Parallel()
	const lease = 24 // much longer than the election
	ns := namespace(t)
	elected := func(s *settings) {
		s.LeaderElection, s.LeaderElectionID, s.LeaderElectionNamespace = true, ns, v1alpha1.ControllerNamespace
		s.LeaseDuration, s.RenewDeadline, s.RetryPeriod = new(8*time.Second), new(6*time.Second), new(250*time.Millisecond)
	}
	leader := startController(t, ns, elected)
	await(t, leader.mgr.Elected(), "the first election")
	standby := startController(t, ns, elected)
	if !standby.mgr.GetCache().WaitForCacheSync(t.Context()) {
		t.Fatal("the standby never saw the cluster")
	}
	begun := time.Now()
	newHolder(t, ns, "service", lease)
	next := claimOn(t, ns, "next", "service", nil)
	await(t, time.After(lease/2*time.Second), "the middle of the lease")
	select {
	case <-standby.mgr.Elected():
		t.Fatal("the standby leads beside the leader")
	default:
	}
	leader.kill()
	untilClaim(t, next, v1alpha1.ReasonGranted)
	inTime(t, time.Since(begun), expiresAfter(lease)) // a count from the election on would take twelve seconds more
}

func TestFault12AHolderIsKilled(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "service", v1alpha1.DistLockSpec{})
	child := startHolder(t, ns)
	held := untilLock(t, ns, "service", "held by another process", func(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 1 })
	token := held.Status.FencingToken
	next := untilClaim(t, claimOn(t, ns, "next", "service", nil), v1alpha1.ReasonWaiting)
	renewals, last := 0, held.Status.Holders[0].RenewTime
	untilLock(t, ns, "service", "renewed for longer than its lease", func(l *v1alpha1.DistLock) bool {
		if h := l.Status.Holders[0]; h.FencingToken == token && !h.RenewTime.Equal(&last) {
			renewals, last = renewals+1, h.RenewTime
		}
		return renewals > 4
	})
	child.Kill()
	after := untilLock(t, ns, "service", "held by the next", func(l *v1alpha1.DistLock) bool {
		if h := l.Status.Holders; len(h) == 1 && h[0].FencingToken == token {
			last = h[0].RenewTime
		}
		return heldByClaim(next)(l)
	})
	h := after.Status.Holders[0]
	inTime(t, h.AcquireTime.Sub(last.Time), expiresAfter(killedLease)) // one machine, one clock
	if h.FencingToken <= token {
		t.Errorf("token %d after token %d", h.FencingToken, token)
	}
}

const (
	holderEnv   = "DISTLOCK_TEST_HOLDER" // the namespace
	killedLease = 3
)

// startHolder starts this test binary as a program that takes the lock "service"
// and renews its hold.
func startHolder(t *testing.T, ns string) *process.Process {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), holderEnv+"="+ns, clientcmd.RecommendedConfigPathEnvVar+"="+kubeconfig)
	cmd.Stderr = os.Stderr
	child, err := process.Start(cmd)
	must(t, err)
	t.Cleanup(child.Kill)
	return child
}

// holdUntilKilled is the program that startHolder starts.
func holdUntilKilled(ns string) int {
	err := func(ctx context.Context) error {
		config, err := clientcmd.BuildConfigFromFlags("", os.Getenv(clientcmd.RecommendedConfigPathEnvVar))
		if err != nil {
			return err
		}
		if admin, err = client.NewWithWatch(config, client.Options{Scheme: env.Scheme()}); err != nil {
			return err
		}
		h := &holder{ns: ns, lock: "service", lease: killedLease}
		if err := h.take(ctx); err != nil {
			return err
		}
		return h.renewUntil(ctx)
	}(context.Background())
	fmt.Fprintln(os.Stderr, "the holder in", ns, "ended by itself:", err)
	return 1
}

func TestFault16TheWaiterAtTheHeadIsDead(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	first := untilClaim(t, claimOn(t, ns, "first", "nightly", nil), v1alpha1.ReasonGranted)
	dead := claimOn(t, ns, "dead", "nightly", new(int32(3)))
	untilQueued(t, ns, "nightly", 1)
	next := claimOn(t, ns, "next", "nightly", nil)
	untilQueued(t, ns, "nightly", 2)
	third := claimOn(t, ns, "third", "nightly", nil)
	untilQueued(t, ns, "nightly", 3)

	var grants []v1alpha1.Hold
	record := func(wanted func(*v1alpha1.DistLock) bool) func(*v1alpha1.DistLock) bool {
		return func(l *v1alpha1.DistLock) bool {
			for _, h := range l.Status.Holders {
				if n := len(grants); n == 0 || grants[n-1].FencingToken != h.FencingToken {
					grants = append(grants, h)
				}
			}
			return wanted(l)
		}
	}
	must(t, admin.Delete(t.Context(), first))
	untilLock(t, ns, "nightly", "held by the next", record(heldByClaim(next)))
	must(t, admin.Delete(t.Context(), next))
	untilLock(t, ns, "nightly", "held by the third", record(heldByClaim(third)))

	var owners []string
	for _, h := range grants {
		owners = append(owners, h.Ref.Name)
	}
	if got := fmt.Sprint(owners); got != "[first dead next third]" && got != "[dead next third]" {
		t.Fatalf("granted to %s", got)
	}
	last := grants[len(grants)-3:]
	inTime(t, last[1].AcquireTime.Sub(last[0].AcquireTime.Time), expiresAfter(3))
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(dead), dead); !apierrors.IsNotFound(err) {
		t.Errorf("the dead waiter's claim: %v, want not found", err)
	}
}
