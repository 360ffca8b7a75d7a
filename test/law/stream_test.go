package law

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestVersionsAreJudgedInOrderWhicheverWatchIsAhead(t *testing.T) {
	var broken []string
	var shown []int64
	s := newStream(func(b string) { broken = append(broken, b) }, func(v Version) { shown = append(shown, v.number()) })
	// The pods' watch is far ahead of that of the locks.
	s.add(podAt(11, "a", corev1.PodRunning))
	s.add(podAt(13, "a", corev1.PodSucceeded))
	s.add(lockAt(10, 5, holdBy("a", 5, v1alpha1.Exclusive)))
	s.add(lockAt(14, 5))
	s.add(jobAt(1, "a", 0))
	if got := s.finish(); got != 5 || len(broken) != 0 {
		t.Errorf("judged %d versions, want 5, and found %q", got, broken)
	}
	if !slices.IsSorted(shown) || len(shown) != 5 {
		t.Errorf("shown %v", shown)
	}
}

func TestABreakIsFoundLongBeforeTheEnd(t *testing.T) {
	var broken []string
	s := newStream(func(b string) { broken = append(broken, b) }, nil)
	s.add(lockAt(1, 0))
	s.add(podAt(2, "a", corev1.PodRunning)) // without a hold
	for version := int64(3); len(broken) == 0; version += 3 {
		if version > 10*judgeAfter {
			t.Fatal("never found")
		}
		s.add(lockAt(version, 0))
		s.add(jobAt(version+1, "j"+strconv.FormatInt(version, 10), 0))
		s.add(podAt(version+2, "b", corev1.PodSucceeded))
	}
	if !strings.HasPrefix(broken[0], "L5 ") {
		t.Errorf("got %q, want a break of L5", broken)
	}
}

func TestWhatWasJudgedIsNotKept(t *testing.T) {
	s := newStream(func(b string) { t.Error(b) }, nil)
	for version := int64(1); version < 100*judgeAfter; version += 3 {
		s.add(lockAt(version, 0))
		s.add(podAt(version+1, "a", corev1.PodSucceeded))
		s.add(jobAt(version+2, "a", 0))
	}
	if kept := len(s.pending); kept > 2*judgeAfter {
		t.Errorf("%d versions are kept", kept)
	}
}
