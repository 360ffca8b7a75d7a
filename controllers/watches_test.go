package controllers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// A watch ends and is answered 410 when it is resumed. Before the controller has
// listed anew, something happens that no watch will tell. Nothing else wakes the lock.
func TestFault22AWatchIsAnswered410(t *testing.T) {
	t.Parallel()
	t.Run("a claim is deleted meanwhile", func(t *testing.T) {
		t.Parallel()
		ns := namespace(t)
		c := startController(t, ns)
		lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
		first := untilClaim(t, claimOn(t, ns, "first", "nightly", nil), v1alpha1.ReasonGranted)
		next := jobOn(t, ns, "next", "nightly")
		untilQueued(t, ns, "nightly", 1)
		letGo := c.forgetWatches(t, "lockclaims")
		must(t, admin.Delete(t.Context(), first))
		letGo()
		running(t, next)
	})
	t.Run("a Job ends meanwhile", func(t *testing.T) {
		t.Parallel()
		ns := namespace(t)
		c := startController(t, ns)
		lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
		a := jobOn(t, ns, "a", "nightly", func(j *batchv1.Job) { manyPods["two-at-once"](&j.Spec) })
		pods := somePodsOf(t, a, 2)
		next := untilClaim(t, claimOn(t, ns, "next", "nightly", nil), v1alpha1.ReasonWaiting)
		letGo := c.forgetWatches(t, "jobs")
		for _, p := range pods {
			setPhase(t, p, corev1.PodSucceeded)
		}
		untilJob(t, ns, "a", "completed", completed)
		look(t, ns, "nightly") // what the pods' ends woke is over
		letGo()
		untilClaim(t, next, v1alpha1.ReasonGranted)
	})
	t.Run("a pod ends meanwhile", func(t *testing.T) {
		t.Parallel()
		ns := namespace(t)
		c := startController(t, ns)
		lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
		setPhase(t, running(t, jobOn(t, ns, "before", "nightly")), corev1.PodSucceeded) // a watch that saw nothing is not resumed
		untilFree(t, ns, "nightly")
		letGo := c.forgetWatches(t, "pods")
		a := jobOn(t, ns, "a", "nightly")
		pod := podOf(t, a)
		untilStarted(t, ns, "a")
		next := untilClaim(t, claimOn(t, ns, "next", "nightly", nil), v1alpha1.ReasonWaiting)
		listed := c.answers(writes(http.MethodGet, "/namespaces/"+ns+"/pods"))
		must(t, admin.Delete(t.Context(), a, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		await(t, listed, "the look for pods")
		setPhase(t, pod, corev1.PodFailed)
		letGo()
		untilClaim(t, next, v1alpha1.ReasonGranted)
	})
	t.Run("a Job is made anew under its name meanwhile", func(t *testing.T) {
		t.Parallel()
		ns := namespace(t)
		c := startController(t, ns)
		a := jobOn(t, ns, "a", "nightly")
		untilTold(t, a, "LockNotFound")
		letGo := c.forgetWatches(t, "jobs")
		must(t, admin.Delete(t.Context(), a, client.PropagationPolicy(metav1.DeletePropagationBackground)))
		anew := jobOn(t, ns, "a", "nightly")
		letGo()
		untilTold(t, anew, "LockNotFound")
	})
	t.Run("a lock is made meanwhile", func(t *testing.T) {
		t.Parallel()
		ns := namespace(t)
		c := startController(t, ns)
		lockIn(t, ns, "other", v1alpha1.DistLockSpec{}) // a watch that saw nothing is not resumed
		claim := untilClaim(t, claimOn(t, ns, "early", "nightly", nil), v1alpha1.ReasonLockNotFound)
		letGo := c.forgetWatches(t, "distlocks")
		lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
		letGo()
		untilClaim(t, claim, v1alpha1.ReasonGranted)
	})
	t.Run("a hold is renewed meanwhile", func(t *testing.T) {
		t.Parallel()
		ns := namespace(t)
		c := startController(t, ns)
		holder := newHolder(t, ns, "service", 3)
		next := untilClaim(t, claimOn(t, ns, "next", "service", nil), v1alpha1.ReasonWaiting)
		alive, die := context.WithCancel(t.Context())
		defer die()
		lost := make(chan error, 1)
		go func() { lost <- holder.renewUntil(alive) }()
		expiry := writes(http.MethodPut, "/distlocks/service/status")
		letGo := c.forgetWatches(t, "distlocks")
		if code := await(t, c.answers(expiry), "an expiry of the hold as it was seen last"); code != http.StatusConflict {
			t.Errorf("the expiry was answered %d", code)
		}
		conflicted := time.Now()
		untilLock(t, ns, "service", "renewed after the conflict", func(l *v1alpha1.DistLock) bool {
			return len(l.Status.Holders) == 1 && l.Status.Holders[0].FencingToken == holder.token && l.Status.Holders[0].RenewTime.After(conflicted)
		})
		letGo()
		die()
		if err := await(t, lost, "the holder's end"); err != nil {
			t.Errorf("a live hold was lost: %v", err)
		}
		untilClaim(t, next, v1alpha1.ReasonGranted)
	})
}

// What is listed anew is shown to the handlers one after the other, in any order.
func TestNobodyGetsPastAnotherWhileTheListIsReadAnew(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	before := jobOn(t, ns, "before", "nightly")
	setPhase(t, podOf(t, before), corev1.PodSucceeded)
	untilFree(t, ns, "nightly")
	letGo := c.forgetWatches(t, "jobs")
	first := jobOn(t, ns, "first", "nightly")
	for n := range 200 {
		jobOn(t, ns, fmt.Sprintf("later-%d", n), "nightly")
	}
	letGo()
	l := untilLock(t, ns, "nightly", "held", func(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 1 })
	granted := &batchv1.Job{}
	must(t, admin.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: l.Status.Holders[0].Ref.Name}, granted))
	if !granted.CreationTimestamp.Equal(&first.CreationTimestamp) { // within a second the order may be another
		t.Errorf("granted to %s of %s, and %s of %s waits", granted.Name, granted.CreationTimestamp, first.Name, first.CreationTimestamp)
	}
}

// forgetWatches ends the watches on a resource and answers 410 Gone to the next that
// wants to go on, as the API server does for a version that it has forgotten. It
// returns when the list that follows is about to be sent; it is sent when the returned
// function is called.
func (n *network) forgetWatches(t *testing.T, resource string) (letGo func()) {
	t.Helper()
	reached, letGo := n.holdUp(func(req *http.Request) bool {
		return req.Method == http.MethodGet && resourceOf(req) == resource && !resumesWatch(req)
	})
	t.Cleanup(letGo)
	var answered atomic.Bool
	n.mu.Lock()
	n.instead = func(req *http.Request) *http.Response {
		if !resumesWatch(req) || resourceOf(req) != resource || !answered.CompareAndSwap(false, true) {
			return nil
		}
		return gone(req)
	}
	open := n.open[resource]
	delete(n.open, resource)
	n.mu.Unlock()
	for _, body := range open {
		body.end()
	}
	await(t, reached, "a new list of "+resource)
	if !answered.Load() {
		t.Errorf("the watch on %s was never answered 410", resource)
	}
	return letGo
}

// resumesWatch: it wants what came after a version that it knows.
func resumesWatch(req *http.Request) bool {
	q := req.URL.Query()
	return q.Get("watch") != "" && q.Get("sendInitialEvents") == "" && q.Get("resourceVersion") != ""
}

func gone(req *http.Request) *http.Response {
	status := apierrors.NewResourceExpired("too old resource version").Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	body, _ := json.Marshal(status)
	return &http.Response{
		Status: "410 Gone", StatusCode: http.StatusGone, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)),
	}
}
