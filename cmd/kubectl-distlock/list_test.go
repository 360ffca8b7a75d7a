package main

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestLocksAreListedWithTheirHoldersAndHowManyWait(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	lockIn(t, ns, "unused")
	claimOn(t, ns, "first", "ledger")
	held := untilLock(t, ns, "ledger", "held", heldBy("first"))
	claimOn(t, ns, "second", "ledger")
	untilLock(t, ns, "ledger", "waited for", waiting(1))

	out := distlock(t, ns, "list").ok(t).out
	rows := wordsOf(out)
	if len(rows) != 3 || strings.Join(rows[0], " ") != "NAME HOLDER TOKEN HELD EXPIRES WAITING AGE" {
		t.Fatalf("prints\n%s", out)
	}
	if r := strings.Join(rows[1], " "); !strings.HasPrefix(r, "ledger LockClaim/first ") || !strings.Contains(r, " with its LockClaim 1 ") {
		t.Errorf("of the held lock: %q", r)
	}
	if r := strings.Join(rows[2], " "); !strings.HasPrefix(r, "unused <none> 0 <none> <none> 0 ") {
		t.Errorf("of the free lock: %q", r)
	}

	wide := distlock(t, ns, "list", "-o", "wide").ok(t).out
	if !strings.Contains(wide, held.Status.Holders[0].Owner) {
		t.Errorf("-o wide does not name the owner:\n%s", wide)
	}
	if all := distlock(t, "default", "list", "-A", "--no-headers").ok(t).out; !strings.Contains(all, ns) || strings.Contains(all, "HOLDER") {
		t.Errorf("-A --no-headers prints\n%s", all)
	}
	if names := distlock(t, ns, "list", "-o", "name").ok(t).out; names != "distlock.distlock.dev/ledger\ndistlock.distlock.dev/unused\n" {
		t.Errorf("-o name prints %q", names)
	}
	var list v1alpha1.DistLockList
	must(t, json.Unmarshal([]byte(distlock(t, ns, "list", "-o", "json").ok(t).out), &list))
	if len(list.Items) != 2 || list.Kind != "DistLockList" || list.Items[0].Kind != "DistLock" ||
		list.Items[0].Status.FencingToken != held.Status.FencingToken {
		t.Errorf("-o json prints %+v", list)
	}
	distlock(t, ns, "list", "-o", "yaml").ends(t, 0, "kind: DistLock", "owner: "+held.Status.Holders[0].Owner)
	distlock(t, ns, "list", "-o", "jsonpath={.items[*].metadata.name}").ends(t, 0, "ledger unused")
}

func TestAListOfNothingSaysWhereToLook(t *testing.T) {
	if r := distlock(t, testEnv.Namespace(t), "list").ends(t, 0, "-A"); r.out != "" {
		t.Errorf("prints %q", r.out)
	}
}

func TestAWatchedListShowsEachChange(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, []string{"--kubeconfig", testEnv.Kubeconfig(), "-n", ns, "list", "--watch"},
			genericiooptions.IOStreams{In: strings.NewReader(""), Out: w, ErrOut: io.Discard})
		_ = w.Close()
	}()
	lines := newLineReader(r)
	lines.until(t, "NAME")
	lines.until(t, "ledger", none)
	claimOn(t, ns, "first", "ledger")
	lines.until(t, "ledger", "LockClaim/first")
	lockIn(t, ns, "another")
	lines.until(t, "another", none)
	cancel()
	go func() { _, _ = io.Copy(io.Discard, r) }()
	<-ended
}

// wordsOf are the words of each line.
func wordsOf(out string) (all [][]string) {
	for line := range strings.Lines(out) {
		all = append(all, strings.Fields(line))
	}
	return all
}
