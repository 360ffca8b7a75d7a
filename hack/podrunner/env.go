package podrunner

import (
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// environment resolves a container's variables as a kubelet does: in order, later
// ones referring to earlier ones by $(NAME). A source that is not supported is an
// error, so that no process runs without what it was promised.
func environment(pod *corev1.Pod, container *corev1.Container) (map[string]string, error) {
	if len(container.EnvFrom) > 0 {
		return nil, fmt.Errorf("container %s: the pod runner does not support envFrom", container.Name)
	}
	env := map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": os.Getenv("HOME"), "HOSTNAME": pod.Name,
	}
	for _, v := range container.Env {
		if v.ValueFrom == nil {
			env[v.Name] = expand(v.Value, env)
			continue
		}
		if v.ValueFrom.FieldRef == nil {
			return nil, fmt.Errorf("container %s, variable %s: the pod runner supports no other source than fieldRef", container.Name, v.Name)
		}
		value, err := field(pod, v.ValueFrom.FieldRef.FieldPath)
		if err != nil {
			return nil, fmt.Errorf("container %s, variable %s: %w", container.Name, v.Name, err)
		}
		env[v.Name] = value
	}
	return env, nil
}

// field is the downward API. An annotation or label that is not there is empty.
func field(pod *corev1.Pod, path string) (string, error) {
	if name, ok := subscript(path, "metadata.annotations"); ok {
		return pod.Annotations[name], nil
	}
	if name, ok := subscript(path, "metadata.labels"); ok {
		return pod.Labels[name], nil
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs":
		return loopback, nil
	default:
		return "", fmt.Errorf("the pod runner does not know the field %q", path)
	}
}

// subscript returns x of map['x'].
func subscript(path, of string) (string, bool) {
	rest, ok := strings.CutPrefix(path, of+"['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, "']")
}

// expand replaces $(NAME) by the variable and $$ by $. An unknown name is left as it
// is, as Kubernetes does.
func expand(s string, env map[string]string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(s, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, rest, closed := strings.Cut(strings.TrimPrefix(after, "("), ")")
		value, known := env[name]
		switch {
		case strings.HasPrefix(after, "$"):
			out.WriteString("$")
			s = after[1:]
		case strings.HasPrefix(after, "(") && closed && known:
			out.WriteString(value)
			s = rest
		default:
			out.WriteString("$")
			s = after
		}
	}
}
