package lock_test

import (
	"context"
	"testing"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

// candidate is a real manager that elects its leader on a DistLock.
type candidate struct {
	*lock.ElectionLock
	elected <-chan struct{}
	end     context.CancelFunc
	ended   <-chan error
}

func newCandidate(t *testing.T, p *program, ns, identity string) candidate {
	t.Helper()
	l, err := p.ElectionLock("leader", identity)
	must(t, err)
	m, err := ctrl.NewManager(controlPlane.Config(), ctrl.Options{
		LeaderElection: true, LeaderElectionNamespace: ns, LeaderElectionResourceLockInterface: l, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: new(10 * time.Second), RenewDeadline: new(6 * time.Second), RetryPeriod: new(300 * time.Millisecond),
		Metrics: server.Options{BindAddress: "0"},
	})
	must(t, err)
	must(t, m.AddHealthzCheck("ping", healthz.Ping))
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	t.Cleanup(end)
	return candidate{l, m.Elected(), end, ended}
}

func (c candidate) awaitElected(t *testing.T) {
	t.Helper()
	select {
	case <-c.elected:
	case err := <-c.ended:
		t.Fatalf("the manager of %s ended: %v", c.Identity(), err)
	case <-time.After(patience):
		t.Fatalf("%s was never elected", c.Identity())
	}
}

func TestAManagerElectsItsLeaderOnADistLock(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "leader", v1alpha1.DistLockSpec{})
	p, q := newProgram(t, ns), newProgram(t, ns)
	first := newCandidate(t, p, ns, "first")
	first.awaitElected(t)
	second := newCandidate(t, q, ns, "second")
	held := until(t, l, "held", func(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 1 })
	if h := held.Status.Holders[0]; h.Owner != "first" || h.FencingToken != first.Token() || *h.LeaseDurationSeconds != 10 {
		t.Errorf("held by %+v, want first with token %d", h, first.Token())
	}
	until(t, l, "renewed", func(l *v1alpha1.DistLock) bool {
		return l.Status.Holders[0].Owner == "first" && l.Status.Holders[0].RenewTime.After(held.Status.Holders[0].RenewTime.Time)
	})
	select {
	case <-second.elected:
		t.Fatal("two leaders")
	default:
	}
	first.end()
	must(t, <-first.ended)
	second.awaitElected(t)
	if second.Token() <= first.Token() {
		t.Errorf("token %d after %d", second.Token(), first.Token())
	}
}

// A leader that cannot reach the API server has stopped before the next one leads.
func TestALeaderThatIsCutOffHasStoppedBeforeTheNextOneLeads(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "leader", v1alpha1.DistLockSpec{})
	p, q := newProgram(t, ns), newProgram(t, ns)
	first := newCandidate(t, p, ns, "first")
	first.awaitElected(t)
	second := newCandidate(t, q, ns, "second")
	p.behave(unreachable)
	second.awaitElected(t)
	select {
	case err := <-first.ended: // controller-runtime ends the manager that has lost
		if err == nil {
			t.Error("the manager that was cut off ended without an error")
		}
	default:
		t.Error("the second leads, and the first has not stopped")
	}
}
