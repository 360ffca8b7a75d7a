// Package soak lets the controller work for a long time under everything that may
// go wrong at once, and has it judged by a watcher that knows nothing of it.
package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/assets"
	"github.com/distlock-dev/distlock/hack/cluster"
	"github.com/distlock-dev/distlock/test/env"
	"github.com/distlock-dev/distlock/test/law"
)

var (
	duration = flag.Duration("soak.time", 70*time.Second, "how long leaders are killed")
	calm     = flag.Duration("soak.calm", 20*time.Second, "how long they live after that, to see whether they grow; requests fail all the same")
	killing  = flag.Duration("soak.kill", 20*time.Second, "mean time between two kills of the leader")
	locks    = flag.Int("soak.locks", 20, "number of locks")
	cronJobs = flag.Int("soak.cronjobs", 200, "number of CronJobs, each due every minute")
	seed     = flag.Uint64("soak.seed", 1, "seed of chance")
	dir      = flag.String("soak.dir", "", "folder for data and logs, which are kept; by default a temporary one")
)

const (
	// cutting is the mean time between two cuts of all connections.
	cutting = 45 * time.Second
	// patience bounds what is waited for at the end.
	patience = 5 * time.Minute
)

// soak is one run.
type soak struct {
	*env.Env
	namespace string
	began     time.Time
	watcher   *law.Watcher
	kubelet   *kubelet
	workload  workload
	admin     *admin
	proxies   []*proxy   // one for those that may lead, and one for the standby
	replicas  []*replica // two that may lead, and one that never does and so is never killed
	gauges    *gauges
	tally     *tally
	broken    []string
	judged    int
	kills     int
	freezes   int
}

func TestTheLawHoldsWhileLeadersAreKilledAndRequestsFail(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	s, err := newSoak(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	if err := s.run(t); err != nil {
		t.Fatal(err)
	}
	s.judge(t)
}

func newSoak(ctx context.Context) (*soak, error) {
	e, err := env.Start(ctx, func(o *cluster.Options) { o.Dir = *dir })
	if err != nil {
		return nil, err
	}
	s := &soak{Env: e, tally: newTally()}
	if err := s.setUp(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *soak) setUp(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "soak-"}}
	if err := s.Client().Create(ctx, ns); err != nil {
		return err
	}
	s.namespace = ns.Name
	s.kubelet = newKubelet(s.Client(), newDice(*seed, 1))
	s.admin = newAdmin(s.Client(), s.namespace, *locks, newDice(*seed, 2))
	s.workload = workload{client: s.Client(), namespace: s.namespace, locks: *locks, cronJobs: *cronJobs}
	if err := s.addReplicas(ctx); err != nil {
		return err
	}
	s.gauges = &gauges{client: s.Client(), namespace: s.namespace, replicas: s.replicas}
	return nil
}

func (s *soak) addReplicas(ctx context.Context) error {
	root, err := assets.Root()
	if err != nil {
		return err
	}
	program := filepath.Join(s.Dir(), "manager")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, ".")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the controller: %w\n%s", err, out)
	}
	direct, err := s.ServiceAccountKubeconfig(ctx, v1alpha1.ControllerNamespace, v1alpha1.ControllerServiceAccount)
	if err != nil {
		return err
	}
	for i, standby := range []bool{false, true} {
		p, err := newProxy(s.Config(), newDice(*seed, uint64(3+i)), standby)
		if err != nil {
			return err
		}
		s.proxies = append(s.proxies, p)
	}
	for i, name := range []string{"a", "b", "standby"} {
		kubeconfig, err := s.proxies[i/2].kubeconfig(direct, s.Dir(), name)
		if err != nil {
			return err
		}
		r, err := newReplica(ctx, program, kubeconfig, name, filepath.Join(s.Dir(), "logs", "manager-"+name+".log"))
		if err != nil {
			return err
		}
		s.replicas = append(s.replicas, r)
	}
	return nil
}

func (s *soak) stop() error {
	for _, p := range s.proxies {
		p.stop()
	}
	return s.Stop()
}

// run plays the whole thing, and returns when all Jobs have ended and all versions
// are judged.
func (s *soak) run(t *testing.T) error {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var err error
	s.watcher, err = law.Watch(ctx, s.Client(), s.namespace, func(b string) {
		s.broken = append(s.broken, b)
		t.Errorf("%s after %s: %s", time.Now().Format(time.TimeOnly), time.Since(s.began).Round(time.Second), b)
	}, s.tally.count)
	if err != nil {
		return err
	}
	if err := s.kubelet.play(ctx, s.namespace); err != nil {
		return err
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel(nil)
	for _, part := range append([]func(context.Context) error{s.gauges.read}, s.keeps()...) {
		parts.Go(func() {
			if err := part(ctx); err != nil {
				cancel(err)
			}
		})
	}
	if err := s.workload.create(ctx); err != nil {
		return err
	}
	pause(ctx, time.Until(time.Now().Truncate(time.Minute).Add(time.Minute))) // until the first Jobs come
	s.began = time.Now()
	if err := s.trouble(ctx, t); err != nil {
		return err
	}
	pause(ctx, *calm)
	return s.settle(ctx)
}

func (s *soak) keeps() []func(context.Context) error {
	var all []func(context.Context) error
	for _, r := range s.replicas {
		all = append(all, r.keep)
	}
	return all
}

// trouble kills leaders, cuts connections and does what administrators do.
func (s *soak) trouble(ctx context.Context, t *testing.T) error {
	ctx, cancel := context.WithTimeout(ctx, *duration)
	defer cancel()
	var parts sync.WaitGroup
	parts.Go(func() {
		for ctx.Err() == nil {
			pause(ctx, s.admin.dice.duration(2*cutting))
			s.proxies[s.admin.dice.upTo(len(s.proxies))].cutAll()
		}
	})
	var adminErr error
	parts.Go(func() { adminErr = s.admin.act(ctx) })
	parts.Go(func() { s.killLeaders(ctx, t) })
	parts.Wait()
	return adminErr
}

// killLeaders kills the leader again and again, and now and then freezes the next one
// for longer than its lease.
func (s *soak) killLeaders(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		pause(ctx, *killing/2+s.admin.dice.duration(*killing)) // not in step with the minutes at which Jobs come
		if r := s.leader(ctx); r != nil {
			r.kill()
			s.kills++
			s.progress(t)
		}
		if r := s.leader(ctx); r != nil && s.kills%4 == 0 {
			r.freeze(ctx, 20*time.Second)
			s.freezes++
		}
	}
}

// leader waits for a replica that leads; nil when ctx ends.
func (s *soak) leader(ctx context.Context) *replica {
	for ctx.Err() == nil {
		for _, r := range s.replicas {
			if now, err := r.gauges(ctx); err == nil && now[leadsMetric] == 1 {
				return r
			}
		}
		pause(ctx, 200*time.Millisecond)
	}
	return nil
}

func (s *soak) progress(t *testing.T) {
	runs, _ := s.tally.finishedRuns()
	grants, least := s.tally.granted(*locks)
	errs, _ := injected(s.proxies...)
	t.Logf("%s: %d Jobs ended, %d grants (the least on a lock: %d), %d kills, %d faults", time.Since(s.began).Round(time.Second), runs, grants, least, s.kills, errs)
}

// settle lets no more Jobs come, and returns when all have ended, all locks are free
// and all versions are judged.
func (s *soak) settle(ctx context.Context) error {
	if err := s.workload.suspend(ctx); err != nil {
		return err
	}
	var left string
	err := wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (_ bool, err error) {
		left, err = s.left(ctx)
		return left == "", err
	})
	if err != nil {
		return fmt.Errorf("no Job comes any more, and still %s: %w", left, errors.Join(err, context.Cause(ctx)))
	}
	s.judged, err = s.watcher.Finish(ctx)
	return err
}

// left says what is not at rest.
func (s *soak) left(ctx context.Context) (string, error) {
	var all v1alpha1.DistLockList
	if err := s.Client().List(ctx, &all, client.InNamespace(s.namespace)); err != nil {
		return "", err
	}
	for _, l := range all.Items {
		if len(l.Status.Holders)+len(l.Status.Queue) > 0 {
			return fmt.Sprintf("DistLock %s has %d holders and %d waiters", l.Name, len(l.Status.Holders), l.Status.Waiting), nil
		}
	}
	var jobs batchv1.JobList
	if err := s.Client().List(ctx, &jobs, client.InNamespace(s.namespace)); err != nil {
		return "", err
	}
	for i := range jobs.Items {
		if !ended(&jobs.Items[i]) {
			return fmt.Sprintf("Job %s has not ended", jobs.Items[i].Name), nil
		}
	}
	return "", nil
}

// judge fails the test for all but the breaks of the law, for which it has failed
// already, and prints what there was.
func (s *soak) judge(t *testing.T) {
	runs, pods := s.tally.finishedRuns()
	grants, least := s.tally.granted(*locks)
	faults, kinds := injected(s.proxies...)
	stalled, stall := s.gauges.longestStall()
	t.Logf("%d locks, %d CronJobs, seed %d, %s", *locks, *cronJobs, *seed, time.Since(s.began).Round(time.Second))
	t.Logf("%d Jobs ended, %d pods, %d grants, on each lock at least %d", runs, pods, grants, least)
	t.Logf("%d kills of the leader, %d times frozen; the replicas ended %d, %d and %d times", s.kills, s.freezes, s.replicas[0].ended(), s.replicas[1].ended(), s.replicas[2].ended())
	t.Logf("%d faults: %s", faults, kinds)
	t.Logf("by the administrator: %s", s.admin)
	t.Logf("longest without a grant while some waited: %s, on %s", stall.Round(time.Second), stalled)
	for _, note := range s.gauges.notes {
		t.Log(note)
	}
	t.Logf("%d stored versions judged, %d breaks of the law", s.judged, len(s.broken))
	for _, r := range s.replicas {
		first, last, lived, grown := s.gauges.growth(r)
		t.Logf("replica %s, as it has been for the last %s: first %s; last %s", r.name, lived, first, last)
		if grown {
			t.Errorf("replica %s has grown", r.name)
		}
		panics, err := r.panics()
		if err != nil {
			t.Error(err)
		}
		for _, p := range panics {
			t.Error(p)
		}
	}
	if least == 0 || s.kills == 0 || faults == 0 {
		t.Error("some lock was never granted, or no leader was killed, or no request failed")
	}
	if stall > stuckAfter {
		t.Errorf("DistLock %s was not granted for %s while some waited", stalled, stall)
	}
	if err := s.kubelet.failed(); err != nil {
		t.Errorf("kubelet: %v", err)
	}
}
