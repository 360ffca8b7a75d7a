package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"
)

// requestLogArgs make the API server log a line for each request it has answered,
// and no more than it does anyway.
var requestLogArgs = []string{"--vmodule=httplog=3"}

// request is one that the API server answered.
type request struct {
	agent    string // the program that made it
	received time.Time
	verb     string
	resource string // with its subresource
	code     string
}

// kind names requests of one kind; those that failed are a kind of their own.
func (r request) kind() string {
	k := r.verb + " " + r.resource
	if !strings.HasPrefix(r.code, "2") {
		k += " (" + r.code + ")"
	}
	return k
}

// requests counts what the controller asked of the API server in each act. Watches
// and the leader's lease are left out.
func (s *stage) requests(acts []act) (requestCounts, error) {
	all, err := s.allRequests(program)
	all = slices.DeleteFunc(all, func(r request) bool { return r.verb == "WATCH" || r.resource == "leases" })
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no request of %s in %s", program, s.APIServer.LogFile)
	}
	return countRequests(all, acts), err
}

// allRequests are those of some programs so far.
func (s *stage) allRequests(agents ...string) ([]request, error) {
	log, err := os.Open(s.APIServer.LogFile)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	return parseRequests(log, agents...)
}

// requestsSince counts what the controller and the programs that use package lock have
// asked for from an instant on.
func (s *stage) requestsSince(began time.Time) (map[string]int, error) {
	all, err := s.allRequests(program, lockAgent)
	return countSince(all, began), err
}

// countSince counts requests by who made them and what for. Watches and the leader's
// lease are left out.
func countSince(all []request, began time.Time) map[string]int {
	counts := map[string]int{}
	for _, r := range all {
		if r.received.Before(began) || r.verb == "WATCH" || r.resource == "leases" {
			continue
		}
		who := "clients"
		if r.agent == program {
			who = "controller"
		}
		counts[who+" "+r.kind()]++
	}
	return counts
}

// requestLine is as k8s.io/apiserver/pkg/server/httplog writes it.
var requestLine = regexp.MustCompile(`^I(\d{4} \d\d:\d\d:\d\d\.\d{6}) .*\] "HTTP" verb="([A-Z]+)" URI="([^"?]*).* latency="([^"]+)".* userAgent="([^"/]+)/.* resp=(\d+)`)

// parseRequests reads what some programs asked for from an API server's log.
func parseRequests(log io.Reader, agents ...string) ([]request, error) {
	var all []request
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := requestLine.FindStringSubmatch(lines.Text())
		if m == nil || !slices.Contains(agents, m[5]) {
			continue
		}
		answered, err := time.ParseInLocation("0102 15:04:05.000000", m[1], time.Local)
		if err != nil {
			return nil, err
		}
		latency, err := time.ParseDuration(m[4])
		if err != nil {
			return nil, err
		}
		all = append(all, request{
			received: answered.AddDate(time.Now().Year(), 0, 0).Add(-latency),
			agent:    m[5], verb: m[2], resource: resourceOf(m[3]), code: m[6],
		})
	}
	return all, lines.Err()
}

// resourceOf is the resource, and its subresource, of a path such as
// /apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/NAME/SUBRESOURCE.
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch parts[0] {
	case "api":
		parts = parts[min(2, len(parts)):]
	case "apis":
		parts = parts[min(3, len(parts)):]
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	switch {
	case len(parts) == 0:
		return strings.Trim(path, "/")
	case len(parts) > 2:
		return parts[0] + "/" + parts[2]
	}
	return parts[0]
}

// requestCounts are requests by kind and act.
type requestCounts struct {
	acts   [actKinds]int // how often each was played
	counts map[string]*[actKinds]int
}

// countRequests gives each request to the act in which it was received; acts are in
// order. What came before the first is not counted.
func countRequests(all []request, acts []act) requestCounts {
	c := requestCounts{counts: map[string]*[actKinds]int{}}
	for _, a := range acts {
		c.acts[a.kind]++
	}
	for _, r := range all {
		next := sort.Search(len(acts), func(i int) bool { return acts[i].began.After(r.received) })
		if next == 0 {
			continue
		}
		if c.counts[r.kind()] == nil {
			c.counts[r.kind()] = &[actKinds]int{}
		}
		c.counts[r.kind()][acts[next-1].kind]++
	}
	return c
}

// perAct is how many requests of a kind the controller made each time an act was
// played.
func (c requestCounts) perAct(kind string, a actKind) float64 {
	if c.counts[kind] == nil || c.acts[a] == 0 {
		return 0
	}
	return float64(c.counts[kind][a]) / float64(c.acts[a])
}
