package podrunner

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// terminal says whether a pod's phase is a final one.
func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// statusOf is the part of a pod's status that a kubelet writes, given what it wrote
// before.
func statusOf(before corev1.PodStatus, containers []*container) corev1.PodStatus {
	status := corev1.PodStatus{
		Phase:  phaseOf(containers),
		HostIP: loopback, HostIPs: []corev1.HostIP{{IP: loopback}},
		PodIP: loopback, PodIPs: []corev1.PodIP{{IP: loopback}},
		StartTime: before.StartTime,
	}
	if status.StartTime == nil {
		status.StartTime = &metav1.Time{Time: metav1.Now().Rfc3339Copy().Time}
	}
	for _, c := range containers {
		if c.init {
			status.InitContainerStatuses = append(status.InitContainerStatuses, c.status())
		} else {
			status.ContainerStatuses = append(status.ContainerStatuses, c.status())
		}
	}
	status.Conditions = conditionsOf(before, containers, status.Phase)
	return status
}

func phaseOf(containers []*container) corev1.PodPhase {
	started := func(c *container) bool { return !c.init && !c.isNew() }
	switch {
	case !slices.ContainsFunc(containers, started):
		return corev1.PodPending
	case slices.ContainsFunc(containers, func(c *container) bool { return !c.ended() }):
		return corev1.PodRunning
	case slices.ContainsFunc(containers, func(c *container) bool { return c.exitCode() != 0 }):
		return corev1.PodFailed
	default:
		return corev1.PodSucceeded
	}
}

// conditionsOf leaves PodScheduled, and what others add, to those who write it.
func conditionsOf(before corev1.PodStatus, containers []*container, phase corev1.PodPhase) []corev1.PodCondition {
	initialized := !slices.ContainsFunc(containers, func(c *container) bool {
		return c.init && (!c.ended() || c.exitCode() != 0)
	})
	ready := !slices.ContainsFunc(containers, func(c *container) bool { return !c.init && c.state.Running == nil })
	reason := ""
	switch phase {
	case corev1.PodSucceeded:
		reason = "PodCompleted"
	case corev1.PodFailed:
		reason = "PodFailed"
	case corev1.PodPending, corev1.PodRunning, corev1.PodUnknown:
		if !ready {
			reason = "ContainersNotReady"
		}
	}
	return []corev1.PodCondition{
		condition(before, corev1.PodReadyToStartContainers, true, ""),
		condition(before, corev1.PodInitialized, initialized, ""),
		condition(before, corev1.ContainersReady, ready, reason),
		condition(before, corev1.PodReady, ready, reason),
	}
}

// condition keeps the transition time of one that has not changed.
func condition(before corev1.PodStatus, kind corev1.PodConditionType, holds bool, reason string) corev1.PodCondition {
	status := corev1.ConditionFalse
	if holds {
		status = corev1.ConditionTrue
	}
	c := corev1.PodCondition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.Now()}
	for _, old := range before.Conditions {
		if old.Type == kind && old.Status == status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return c
}
