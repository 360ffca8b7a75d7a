package main

import (
	"strings"
	"testing"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestTheShellCompletesNames(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	lockIn(t, ns, "ledger-2")
	lockIn(t, ns, "reports")
	acquire(t, ns, "ledger", "mine")
	claimOn(t, ns, "by-hand", "reports")
	untilClaim(t, ns, "by-hand", v1alpha1.ReasonGranted)
	for line, want := range map[string]string{
		"describe ledger-2 le":       "ledger",
		"acquire ":                   "ledger ledger-2 reports",
		"acquire ledger ":            "",
		"revoke ledger ":             "LockClaim/mine",
		"release ":                   "mine",
		"raise reports l":            "ledger ledger-2",
		"list --namespace " + ns[:6]: ns,
		"list -o wi":                 "wide",
		"acquire ledger -o js":       "json",
		"list --context ":            "distlock-local",
	} {
		words := strings.Split(line, " ")
		out := distlock(t, ns, append([]string{"__complete"}, words...)...).ok(t).out
		out, _, _ = strings.Cut(out, ":")
		got := strings.Join(strings.Fields(out), " ")
		if strings.Contains(line, "-o ") || strings.Contains(line, "--") { // the shell itself chooses from these
			if !strings.Contains(" "+got+" ", " "+want+" ") {
				t.Errorf("%q completes to %q, want %q in it", line, got, want)
			}
		} else if got != want {
			t.Errorf("%q completes to %q, want %q", line, got, want)
		}
	}
}
