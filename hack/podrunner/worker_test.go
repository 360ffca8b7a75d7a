package podrunner

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// A process that ends between SIGTERM and the next look at it has an exit code of its own.
func TestAnEndThatWasNotTakenInYetKeepsItsExitCode(t *testing.T) {
	now := metav1.Now()
	w := terminatingWorker(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", DeletionTimestamp: &now, DeletionGracePeriodSeconds: ptr.To(int64(60))},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "ended", Command: []string{"sh", "-c", "exit 5"}}, {Name: "without-a-command"},
		}},
	})
	ended, without := w.containers[0], w.containers[1]
	for _, c := range w.containers {
		c.start(w.pod(), w.dir)
	}
	<-ended.child.Done()

	w.terminate()

	if ended.ended() {
		t.Fatalf("recorded as ended with exit code %d before its own was taken in", ended.exitCode())
	}
	if !without.ended() || without.exitCode() != exitTerminated {
		t.Errorf("without a process: %+v", without.state)
	}
	w.exited(ended)
	if ended.exitCode() != 5 || !w.ended() {
		t.Errorf("exit code %d, want 5", ended.exitCode())
	}
}

func TestAContainerThatWaitsForItsNextStartEndsWithItsPod(t *testing.T) {
	now := metav1.Now()
	w := terminatingWorker(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", DeletionTimestamp: &now},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Command: []string{"sh", "-c", "exit 5"}}}},
	})
	c := w.containers[0]
	c.start(w.pod(), w.dir)
	<-c.child.Done()
	c.reap()
	c.awaitRestart()

	w.terminate()

	if !c.ended() || c.exitCode() != exitTerminated {
		t.Errorf("state %+v, want it ended", c.state)
	}
}

func terminatingWorker(t *testing.T, pod *corev1.Pod) *worker {
	t.Helper()
	w := newWorker(&Runner{dir: t.TempDir()}, pod)
	w.dir = t.TempDir()
	w.kill = newStoppedTimer()
	t.Cleanup(w.killAll)
	return w
}
