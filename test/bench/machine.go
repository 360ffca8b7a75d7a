package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"k8s.io/client-go/discovery"
)

// machine is what the figures depend on.
type machine struct {
	CPUs       int    `json:"cpus"`
	OS         string `json:"os"`
	Go         string `json:"go"`
	Kubernetes string `json:"kubernetes"`
	EtcdFsync  bool   `json:"etcdFsync"`
}

func factsOf(s *stage) (machine, error) {
	m := machine{CPUs: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()}
	d, err := discovery.NewDiscoveryClientForConfig(s.Config())
	if err != nil {
		return m, err
	}
	v, err := d.ServerVersion()
	if err != nil {
		return m, fmt.Errorf("asking the API server for its version: %w", err)
	}
	m.Kubernetes = v.GitVersion
	return m, nil
}

// load is the machine's load average of the last minute; "unknown" where the system
// does not say.
func load() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(content), " ")
	return one
}
