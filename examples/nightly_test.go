package examples

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Two servers start the same batch, one of them somewhat later than the other: it runs
// once.
func TestTheNightlyBatchRunsOnce(t *testing.T) {
	ns := namespace(t, "nightly/lock.yaml")
	said := make([]string, 4)
	var servers sync.WaitGroup
	for i := range 3 { // at the same time
		cmd := in(t, ns, filepath.Join(programs, "nightly"))
		servers.Go(func() {
			out, err := cmd.CombinedOutput()
			if said[i] = string(out); err != nil {
				t.Errorf("server %d: %v: %s", i, err, out)
			}
		})
	}
	servers.Wait()
	out, err := in(t, ns, filepath.Join(programs, "nightly")).CombinedOutput() // when that has ended
	must(t, err)
	said[3] = string(out)
	ran := 0
	for _, s := range said {
		switch {
		case strings.HasPrefix(s, "reporting with fencing token"):
			ran++
		case !strings.HasPrefix(s, "the other one does it:"):
			t.Errorf("said %q", s)
		}
	}
	if ran != 1 || strings.HasPrefix(said[3], "reporting") {
		t.Errorf("ran %d times: %q", ran, said)
	}
}
