package main

import (
	"maps"
	"strings"
	"testing"
	"time"
)

func TestOnlyTheControllersOwnRequestsAreRead(t *testing.T) {
	log := strings.Join([]string{
		`I0730 12:00:00.000001    7 httplog.go:141] "HTTP" verb="PUT" URI="/apis/distlock.dev/v1alpha1/namespaces/bench/distlocks/lock/status" latency="4ms" userAgent="manager/v0.0.0 (linux/amd64) kubernetes/$Format" audit-ID="x" srcIP="127.0.0.1:1" apf_pl="workload-low" resp=200`,
		`I0730 12:00:01.000000    7 httplog.go:141] "HTTP" verb="LIST" URI="/api/v1/namespaces/bench/pods?limit=1&labelSelector=a%3Db" latency="1ms" userAgent="manager/v0.0.0" resp=200`,
		`I0730 12:00:02.500000    7 httplog.go:141] "HTTP" verb="PATCH" URI="/apis/batch/v1/namespaces/bench/jobs/a" latency="100ms" userAgent="manager/v0.0.0" resp=422`,
		`I0730 12:00:02.600000    7 httplog.go:141] "HTTP" verb="WATCH" URI="/apis/batch/v1/jobs" latency="1ms" userAgent="manager/v0.0.0" resp=200`,
		`I0730 12:00:02.700000    7 httplog.go:141] "HTTP" verb="PUT" URI="/apis/coordination.k8s.io/v1/namespaces/distlock-system/leases/x" latency="1ms" userAgent="manager/v0.0.0" resp=200`,
		`I0730 12:00:03.000000    7 httplog.go:141] "HTTP" verb="PUT" URI="/apis/batch/v1/namespaces/bench/jobs/a/status" latency="1ms" userAgent="kube-controller-manager/v1.37.2" resp=200`,
		`I0730 12:00:04.000000    7 controller.go:1] a line about manager/`,
	}, "\n")
	all, err := parseRequests(strings.NewReader(log), program)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"PUT distlocks/status", "LIST pods", "PATCH jobs (422)", "WATCH jobs", "PUT leases"}
	if len(all) != len(want) {
		t.Fatalf("got %d requests, want %d: %v", len(all), len(want), all)
	}
	for i, r := range all {
		if r.kind() != want[i] {
			t.Errorf("got %q, want %q", r.kind(), want[i])
		}
	}
	if at := time.Date(time.Now().Year(), time.July, 30, 12, 0, 2, 400e6, time.Local); !all[2].received.Equal(at) {
		t.Errorf("got %s, want %s", all[2].received, at)
	}
}

func TestRequestsCountForTheActInWhichTheyWereReceived(t *testing.T) {
	at := func(second int) time.Time { return time.Date(2030, 1, 1, 0, 0, second, 0, time.UTC) }
	put := func(second int) request {
		return request{received: at(second), verb: "PUT", resource: "distlocks/status", code: "200"}
	}
	c := countRequests(
		[]request{put(0), put(11), put(12), put(20), put(31), put(40)},
		[]act{{start, at(10)}, {handover, at(20)}, {start, at(30)}},
	)
	for a, want := range map[actKind]float64{start: 2, handover: 1, end: 0} {
		if got := c.perAct("PUT distlocks/status", a); got != want {
			t.Errorf("%s: got %v, want %v", a, got, want)
		}
	}
	if got := c.perAct("GET distlocks", start); got != 0 {
		t.Errorf("a kind that never came: got %v, want 0", got)
	}
}

func TestRequestsAreCountedByWhoMadeThem(t *testing.T) {
	began := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(second int, agent, verb, resource, code string) request {
		return request{agent: agent, received: began.Add(time.Duration(second) * time.Second), verb: verb, resource: resource, code: code}
	}
	got := countSince([]request{
		at(-1, lockAgent, "PUT", "distlocks/status", "200"), // before
		at(0, lockAgent, "PUT", "distlocks/status", "200"),
		at(1, lockAgent, "PUT", "distlocks/status", "409"),
		at(2, lockAgent, "PUT", "distlocks/status", "200"),
		at(3, program, "PUT", "distlocks/status", "200"),
		at(4, program, "PUT", "leases", "200"),
		at(5, lockAgent, "WATCH", "distlocks", "200"),
	}, began)
	want := map[string]int{"clients PUT distlocks/status": 2, "clients PUT distlocks/status (409)": 1, "controller PUT distlocks/status": 1}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAResourceIsNamedWithItsSubresource(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/namespaces/a/pods/b/status":                   "pods/status",
		"/api/v1/nodes/b":                                      "nodes",
		"/apis/batch/v1/jobs":                                  "jobs",
		"/apis/distlock.dev/v1alpha1/namespaces/a/distlocks/b": "distlocks",
		"/apis/events.k8s.io/v1/namespaces/a/events":           "events",
		"/api":                 "api",
		"/api/v1/namespaces/a": "namespaces",
		"/apis/distlock.dev/v1alpha1/namespaces/a/lockclaims/b/status": "lockclaims/status",
	} {
		if got := resourceOf(path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}
