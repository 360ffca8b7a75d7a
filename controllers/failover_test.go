package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// failoversAtOnce is how many failovers are played beside each other.
const failoversAtOnce = 8

// The controller is killed right before each of its writes, and right after each
// of them was stored with its reply lost. A warm standby and a cold one take
// turns in taking over.
func TestNothingIsLeftHalfDoneWhereverTheLeaderIsKilled(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			var sent []string
			t.Run("killed nowhere", func(t *testing.T) { sent = s.run(t, 0, false, false) })
			var runs sync.WaitGroup
			defer runs.Wait()
			limit := make(chan struct{}, failoversAtOnce)
			for i, write := range sent {
				for _, stored := range []bool{false, true} {
					n, warm := i+1, (i%2 == 0) == stored
					name := fmt.Sprintf("%s write %d, %s, %s standby", map[bool]string{false: "before", true: "after"}[stored], n, write,
						map[bool]string{false: "cold", true: "warm"}[warm])
					runs.Go(func() {
						limit <- struct{}{}
						defer func() { <-limit }()
						t.Run(name, func(t *testing.T) {
							if len(s.run(t, n, stored, warm)) < n {
								t.Errorf("it never came to write %d", n)
							}
						})
					})
				}
			}
		})
	}
}

// run plays a scenario in a namespace of its own with a leader that dies at its
// n-th write, and returns what the leader was about to write until then.
func (s scenario) run(t *testing.T, n int, stored, warm bool) []string {
	ns := s.namespace(t)
	bystander := newHolder(t, ns, "service", 3600)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	if s.arrange != nil {
		s.arrange(t, ns)
	}
	leader := newController(t, ns)
	writes := leader.dieAt(n, stored)
	standby, election := newStandby(t, ns)
	if warm {
		standby.start(t)
	}
	leader.start(t)

	ended, end := context.WithCancel(t.Context())
	takenOver := make(chan struct{})
	go func() {
		defer close(takenOver)
		select {
		case <-writes.dead:
		case <-ended.Done():
			return
		}
		election.won.Store(true)
		if !warm {
			standby.start(t)
		}
		leader.kill()
	}()
	defer func() { end(); <-takenOver }()

	s.play(t, ns)
	s.settled(t, ns, bystander)
	return writes.names()
}

// settled fails the test unless everything came to its end, and nothing was
// taken from anybody by mistake.
func (s scenario) settled(t *testing.T, ns string, bystander *holder) {
	untilFree(t, ns, "nightly")
	var jobs batchv1.JobList
	must(t, admin.List(t.Context(), &jobs, client.InNamespace(ns)))
	for _, j := range jobs.Items {
		untilJob(t, ns, j.Name, "completed", completed)
		if token := j.Annotations[v1alpha1.RevokedTokenAnnotation]; (token != "") != (j.Name == s.revoked) {
			t.Errorf("Job %s gave up the hold with token %q", j.Name, token)
		}
	}
	var claims v1alpha1.LockClaimList
	must(t, admin.List(t.Context(), &claims, client.InNamespace(ns)))
	for _, c := range claims.Items {
		t.Errorf("LockClaim %s is still there", c.Name)
	}
	if err := bystander.renew(t.Context()); err != nil {
		t.Errorf("a hold that nothing was wrong with is gone: %v", err)
	}
}

// writesSent is what a network saw of the controller's writes.
type writesSent struct {
	dead chan struct{}

	mu   sync.Mutex
	sent []string
}

func (d *writesSent) names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sent
}

// dieAt cuts the network for ever at the n-th write, before it is sent or, for
// stored, after it was answered and before the answer arrives; never for 0.
// Events and the leader's own lease do not count.
func (n *network) dieAt(nth int, stored bool) *writesSent {
	d := &writesSent{dead: make(chan struct{})}
	die := sync.OnceFunc(func() { n.cut(); close(d.dead) })
	var last atomic.Pointer[http.Request]
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hooks = append(n.hooks, func(req *http.Request) {
		if req.Method == http.MethodGet || strings.Contains(req.URL.Path, "/events") || strings.Contains(req.URL.Path, "/leases") || n.isCut() {
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		path := strings.SplitN(req.URL.Path, "/", 7)
		d.sent = append(d.sent, req.Method+" "+strings.ReplaceAll(path[len(path)-1], "/", " "))
		if len(d.sent) == nth {
			last.Store(req)
			if !stored {
				die()
			}
		}
	})
	n.replies = append(n.replies, func(req *http.Request, _ int) {
		if req == last.Load() {
			die()
		}
	})
	return d
}

// newStandby is an instance that only watches until it has won its election.
func newStandby(t *testing.T, ns string) (*instance, *election) {
	t.Helper()
	e := &election{}
	return newController(t, ns, func(s *settings) {
		s.LeaderElection = true
		s.LeaderElectionResourceLockInterface = e
		s.RetryPeriod = new(50 * time.Millisecond)
	}), e
}

// election is one that a test decides.
type election struct{ won atomic.Bool }

// Get implements resourcelock.Interface.
func (e *election) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if e.won.Load() {
		return &resourcelock.LeaderElectionRecord{}, []byte("free"), nil
	}
	return &resourcelock.LeaderElectionRecord{HolderIdentity: "leader", LeaseDurationSeconds: 3600}, []byte("held"), nil
}

// Create implements resourcelock.Interface.
func (e *election) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	return errors.New("there is a record")
}

// Update implements resourcelock.Interface.
func (e *election) Update(context.Context, resourcelock.LeaderElectionRecord) error { return nil }

// RecordEvent implements resourcelock.Interface.
func (e *election) RecordEvent(string) {}

// Identity implements resourcelock.Interface.
func (e *election) Identity() string { return "standby" }

// Describe implements resourcelock.Interface.
func (e *election) Describe() string { return "decided by the test" }
