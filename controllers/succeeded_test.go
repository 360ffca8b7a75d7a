package controllers_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// The soak found it: the error of the LIST that should show that nothing of the Job
// runs any more was taken for something that runs.
func TestAListThatFailsMakesNoIntruderOfAJobWhosePodHasSucceeded(t *testing.T) {
	ns := namespace(t)
	first := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, untilStarted(t, ns, "a"))
	jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)
	refuseJobUpdates(t, ns, "jobs/status") // so that the Job is not said to be Complete
	var asked atomic.Int32
	first.mu.Lock()
	first.hooks = append(first.hooks, func(req *http.Request) {
		if req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, "/jobs/a") {
			asked.Add(1)
		}
	})
	first.mu.Unlock()
	setPhase(t, pod, corev1.PodSucceeded)
	b := untilJob(t, ns, "b", "resumed", func(j *batchv1.Job) bool { return !suspended(j) })
	podOfB := podOf(t, b)
	first.kill()
	if n := asked.Load(); n > 0 {
		t.Errorf("the Job whose hold ended with its pod's success was read live %d times after that", n)
	}

	second := newController(t, ns)
	var failed atomic.Int32
	second.instead = func(req *http.Request) *http.Response {
		if strings.HasSuffix(req.URL.Path, "/pods") && strings.Contains(req.URL.Query().Get("fieldSelector"), "status.phase!=") && failed.Add(1) <= 3 {
			return internalError(req)
		}
		return nil
	}
	second.start(t)
	awaitAnswer(t, ns)
	setPhase(t, podOfB, corev1.PodSucceeded)
	untilFree(t, ns, "nightly")
	if failed.Load() == 0 {
		t.Error("no LIST failed")
	}
	must(t, admin.Get(t.Context(), client.ObjectKeyFromObject(a), a))
	if suspended(a) {
		t.Error("the Job whose pod had succeeded was suspended")
	}
}

func internalError(req *http.Request) *http.Response {
	status := apierrors.NewInternalError(errors.New("injected")).Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	body, _ := json.Marshal(status)
	return &http.Response{
		Status: "500 Internal Server Error", StatusCode: http.StatusInternalServerError, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Request: req, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)),
	}
}

// The soak found it: the Job controller does not count a pod that it deletes because
// its Job is suspended, also when that ends well.
func TestAPodThatEndsWellWhileItsRevokedJobIsStoppedDoesNotEndTheJob(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, untilStarted(t, ns, "a"))
	b := jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)
	revoke(t, ns, "nightly", ownerOf(a))
	until(t, pod, &corev1.PodList{}, "being deleted", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	setPhase(t, pod, corev1.PodSucceeded)
	untilLock(t, ns, "nightly", "held by b", heldBy(b))
	must(t, admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	setPhase(t, podOf(t, b), corev1.PodSucceeded)
	untilLock(t, ns, "nightly", "held by a again", heldBy(a))
	setPhase(t, podOf(t, untilStarted(t, ns, "a")), corev1.PodSucceeded)
	untilFree(t, ns, "nightly")
}
