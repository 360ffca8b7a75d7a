package controllers_test

import (
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// A policy keeps the Job controller from saying Complete, or anything else, before
// the next Job runs.
func TestTheLockIsHandedOnWhenTheOnePodOfAJobHasSucceededBeforeItIsComplete(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, untilStarted(t, ns, "a"))
	jobOn(t, ns, "b", "nightly")
	l := untilQueued(t, ns, "nightly", 1)
	refuseJobUpdates(t, ns, "jobs/status")
	setPhase(t, pod, corev1.PodSucceeded)
	b := untilJob(t, ns, "b", "resumed", func(j *batchv1.Job) bool { return !suspended(j) })
	must(t, admin.Get(t.Context(), client.ObjectKeyFromObject(a), a))
	if completed(a) || a.Status.Succeeded > 0 {
		t.Errorf("the Job controller had its say: %+v", a.Status)
	}
	l = untilLock(t, ns, "nightly", "held by b", func(now *v1alpha1.DistLock) bool {
		return heldBy(b)(now) && now.Status.FencingToken > l.Status.FencingToken
	})

	// A new controller does not take the Job for one that runs without the lock.
	startController(t, ns)
	setPhase(t, podOf(t, b), corev1.PodSucceeded)
	untilFree(t, ns, "nightly")
	must(t, admin.Get(t.Context(), client.ObjectKeyFromObject(l), l))
	if token := b.Spec.Template.Annotations[v1alpha1.TokenAnnotation]; strconv.FormatInt(l.Status.FencingToken, 10) != token {
		t.Errorf("token %d: the lock was granted again after b, which had %s", l.Status.FencingToken, token)
	}
	must(t, admin.Get(t.Context(), client.ObjectKeyFromObject(a), a))
	if suspended(a) {
		t.Error("the Job whose pod had succeeded was suspended")
	}
}

func TestALeasedHoldEndsEarlyWhenItsPodsKubeletSaysThatItEnded(t *testing.T) {
	for name, hold := range map[string]func(t *testing.T, ns string, pod *corev1.Pod){
		"taken by the pod": func(t *testing.T, ns string, pod *corev1.Pod) {
			h := &holder{ns: ns, lock: "nightly"}
			ref := &v1alpha1.ObjectRef{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
			must(t, h.write(t.Context(), func(s protocol.State) (protocol.State, error) {
				return s.Grant(protocol.NewWaiter(s.Spec, "pod/"+pod.Name, nil, nil, new(int32(3600)), ref), time.Now())
			}))
		},
		"granted to its claim": func(t *testing.T, ns string, pod *corev1.Pod) {
			must(t, admin.Create(t.Context(), &v1alpha1.LockClaim{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: ns, Name: "of-the-pod",
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
				},
				Spec: v1alpha1.LockClaimSpec{LockName: "nightly", LeaseDurationSeconds: new(int32(3600))},
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t)
			startController(t, ns)
			lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
			pod := runningPod(t, ns)
			hold(t, ns, pod)
			held := untilLock(t, ns, "nightly", "held", func(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 1 })
			next := claimOn(t, ns, "next", "nightly", nil)
			untilClaim(t, next, v1alpha1.ReasonWaiting)

			// What pod garbage collection does of a lost node's pod: nobody knows whether it still runs.
			setPhase(t, pod, corev1.PodFailed)
			another := claimOn(t, ns, "another", "nightly", nil)
			untilClaim(t, another, v1alpha1.ReasonWaiting)
			if l := untilQueued(t, ns, "nightly", 2); l.Status.Holders[0].FencingToken != held.Status.FencingToken {
				t.Fatalf("holders %+v, want the one before", l.Status.Holders)
			}

			endedByKubelet(t, pod)
			untilClaim(t, next, v1alpha1.ReasonGranted)
		})
	}
}

// runningPod is a pod of nobody's that runs on the played node.
func runningPod(t *testing.T, ns string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "program"},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{Name: "main", Image: "example.com/work"}},
		},
	}
	must(t, admin.Create(t.Context(), pod))
	setStatus(t, pod, corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	return pod
}

func endedByKubelet(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	setStatus(t, pod, corev1.PodFailed, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}})
}

func setStatus(t *testing.T, pod *corev1.Pod, phase corev1.PodPhase, state corev1.ContainerState) {
	t.Helper()
	next := pod.DeepCopy()
	next.Status.Phase = phase
	next.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "example.com/work", State: state}}
	must(t, admin.Status().Patch(t.Context(), next, client.MergeFrom(pod)))
	*pod = *next
}
