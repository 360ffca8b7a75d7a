package podrunner

import (
	"context"
	"fmt"
	"runtime"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// loopback is the address of the node and of every pod.
const loopback = "127.0.0.1"

// registerNode makes the Node object, or takes over the one an earlier run left.
// Nobody watches over the node's health here, so it needs no heartbeat.
func (r *Runner) registerNode(ctx context.Context, port int) error {
	nodes := r.kubelet.CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: r.node,
		Labels: map[string]string{
			corev1.LabelHostname: r.node, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
		},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		node, err = nodes.Get(ctx, r.node, metav1.GetOptions{})
	}
	if err != nil {
		return fmt.Errorf("registering node %s: %w", r.node, err)
	}
	node.Status = nodeStatus(port)
	if _, err := nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("reporting node %s: %w", r.node, err)
	}
	return nil
}

// nodeStatus is that of a node with room for everything, whose kubelet's API is on a
// port.
func nodeStatus(port int) corev1.NodeStatus {
	room := corev1.ResourceList{
		corev1.ResourcePods:   resource.MustParse("10k"),
		corev1.ResourceCPU:    resource.MustParse("1k"),
		corev1.ResourceMemory: resource.MustParse("1Ti"),
	}
	return corev1.NodeStatus{
		Capacity: room, Allocatable: room,
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}}, //nolint:gosec // below 65536
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: loopback}},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "PodRunner",
			Message: "pods run as local processes", LastTransitionTime: metav1.Now(),
		}},
	}
}
