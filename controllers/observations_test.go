package controllers

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// However a hold of a deleted Job ends: also by another's hand, or with its lock.
func TestWhatWasSeenOfADeletedJobIsForgottenWithItsHold(t *testing.T) {
	job := types.UID("job")
	held := &v1alpha1.DistLock{}
	held.UID = "lock"
	held.Status.Holders = []v1alpha1.Hold{{Owner: "job/a/job", FencingToken: 1, Ref: &v1alpha1.ObjectRef{Kind: "Job", UID: job}}}
	free := held.DeepCopy()
	free.Status.Holders = nil
	for name, end := range map[string]func(*observations){
		"its hold is taken away": func(o *observations) { o.lock(free) },
		"its lock is deleted":    func(o *observations) { o.forgetLock(held.UID) },
	} {
		t.Run(name, func(t *testing.T) {
			o := newObservations(clock.RealClock{})
			o.lock(held)
			o.job(job, jobFacts{started: true})
			o.jobGone(job, false)
			if !o.started(job) {
				t.Error("it was forgotten before its hold ended")
			}
			end(o)
			if len(o.gone) > 0 || len(o.jobs) > 0 {
				t.Errorf("%d and %d are remembered", len(o.gone), len(o.jobs))
			}
		})
	}
}

// A standby counts too, so that the wait after a deletion does not begin anew with
// each leader.
func TestHowLongAJobIsGoneCountsFromWhenTheWatchShowsIt(t *testing.T) {
	held := &v1alpha1.DistLock{}
	held.Status.Holders = []v1alpha1.Hold{{Owner: "job/a/job", FencingToken: 1, Ref: &v1alpha1.ObjectRef{Kind: "Job", UID: "job"}}}
	for name, show := range map[string]func(*observations){
		"being deleted": func(o *observations) { o.job("job", jobFacts{deleted: true}) },
		"gone":          func(o *observations) { o.jobGone("job", false) },
	} {
		t.Run(name, func(t *testing.T) {
			c := clocktesting.NewFakePassiveClock(time.Now())
			o := newObservations(c)
			o.lock(held)
			show(o)
			c.SetTime(c.Now().Add(time.Minute))
			if d := o.goneFor("job"); d != time.Minute {
				t.Errorf("it is gone for %v, want a minute", d)
			}
			o.isThere("job")
			if d := o.goneFor("job"); d != 0 {
				t.Errorf("it was there, and is gone for %v", d)
			}
		})
	}
}
