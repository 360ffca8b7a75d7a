package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestAcquirePrintsWhatAShellEvaluates(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	out := distlock(t, ns, "acquire", "ledger").ok(t).out
	script := out + `echo "$DISTLOCK_CLAIM $DISTLOCK_NAME $DISTLOCK_FENCING_TOKEN"; sh -c 'echo "$DISTLOCK_NAME"'`
	printed, err := exec.CommandContext(t.Context(), "sh", "-euc", script).CombinedOutput()
	must(t, err)
	held := untilLock(t, ns, "ledger", "held", func(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 1 })
	h := held.Status.Holders[0]
	want := ns + "/" + h.Ref.Name + "/" + string(h.Ref.UID) + " ledger " + tokenText(h) + "\nledger\n"
	if string(printed) != want {
		t.Errorf("the shell knows %q, want %q", printed, want)
	}
	distlock(t, ns, "release", strings.Fields(string(printed))[0]).ok(t)
	untilLock(t, ns, "ledger", "free", isFree)
}

func TestAcquirePrintsJSONAndNames(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "builders", withCapacity(4))
	claim := &v1alpha1.LockClaim{}
	must(t, json.Unmarshal([]byte(distlock(t, ns, "acquire", "builders", "--permits", "3", "--claim", "mine", "-o", "json").ok(t).out), claim))
	if claim.Kind != "LockClaim" || claim.Name != "mine" || claim.Status.FencingToken == 0 || *claim.Spec.Permits != 3 || *claim.Spec.Mode != v1alpha1.Shared {
		t.Errorf("prints %+v", claim)
	}
	if out := distlock(t, ns, "acquire", "builders", "--claim", "second", "-o", "name").ok(t).out; out != "lockclaim.distlock.dev/second\n" {
		t.Errorf("prints %q", out)
	}
	distlock(t, ns, "acquire", "builders", "--exclusive", "--no-wait", "-o", "name").ends(t, exitHeld)
	distlock(t, ns, "acquire", "builders", "--permits", "5").ends(t, exitUsage, "--permits", "capacity of 4")
}

func TestAHeldLockIsNotWaitedForWithNoWait(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	claimOn(t, ns, "first", "ledger")
	untilClaim(t, ns, "first", v1alpha1.ReasonGranted)
	r := distlock(t, ns, "acquire", "ledger", "--no-wait").ends(t, exitHeld, "held by claim/", "first")
	evaluated := exec.CommandContext(t.Context(), "sh", "-c", `eval "$1"; exit $?`, "sh", r.out)
	var exit *exec.ExitError
	if err := evaluated.Run(); !errors.As(err, &exit) || exit.ExitCode() != exitHeld {
		t.Errorf("evaluated, %q ends with %v, want exit code %d", r.out, err, exitHeld)
	}
	must(t, admin.Delete(t.Context(), &v1alpha1.LockClaim{ObjectMeta: metaName(ns, "first")}))
	untilLock(t, ns, "ledger", "free", isFree)
	noClaims(t, ns)
}

func TestAClaimIsRemovedWhenItsTimeIsOver(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	first := claimOn(t, ns, "first", "ledger")
	untilClaim(t, ns, "first", v1alpha1.ReasonGranted)
	distlock(t, ns, "acquire", "ledger", "--wait", "-2s").ends(t, exitUsage, "--wait")
	distlock(t, ns, "acquire", "ledger", "--wait", "2s").ends(t, exitTimedOut, "within 2s", "held by claim/")
	must(t, admin.Delete(t.Context(), first))
	untilLock(t, ns, "ledger", "free", isFree)
	noClaims(t, ns)
}

func TestAClaimIsRemovedWhenAcquireIsInterrupted(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(signal.String(), func(t *testing.T) {
			ns := testEnv.Namespace(t)
			lockIn(t, ns, "ledger")
			first := claimOn(t, ns, "first", "ledger")
			untilClaim(t, ns, "first", v1alpha1.ReasonGranted)
			cmd := process(t, ns, "acquire", "ledger")
			var out bytes.Buffer
			cmd.Stdout = &out
			must(t, cmd.Start())
			untilLock(t, ns, "ledger", "waited for", waiting(1))
			must(t, cmd.Process.Signal(signal))
			err := cmd.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != exitSignal+int(signal) {
				t.Fatalf("ended with %v, want exit code %d: %s", err, exitSignal+int(signal), cmd.Stderr)
			}
			if want := "(exit " + strconv.Itoa(exitSignal+int(signal)) + ")\n"; out.String() != want {
				t.Errorf("prints %q, want %q", out.String(), want)
			}
			must(t, admin.Delete(t.Context(), first))
			noClaims(t, ns) // at once
			untilLock(t, ns, "ledger", "free", isFree)
		})
	}
}

func TestAWaitingAcquireGetsItsTurn(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	first := claimOn(t, ns, "first", "ledger")
	untilClaim(t, ns, "first", v1alpha1.ReasonGranted)
	done := make(chan result, 1)
	go func() { done <- distlock(t, ns, "acquire", "ledger", "--claim", "second", "-o", "name") }()
	untilLock(t, ns, "ledger", "waited for", waiting(1))
	must(t, admin.Delete(t.Context(), first))
	(<-done).ends(t, 0, "lockclaim.distlock.dev/second", "held by claim/")
	untilLock(t, ns, "ledger", "held by the second", heldBy("second"))
}

func TestAClaimOfAnotherIsNotTaken(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	claimOn(t, ns, "taken", "ledger")
	distlock(t, ns, "acquire", "ledger", "--claim", "taken").ends(t, exitFailed, "--claim", "exists already")
	untilClaim(t, ns, "taken", v1alpha1.ReasonGranted)
}

// Fault 15, for claims: the reply to the creation is lost, once before and once
// after it was stored.
func TestAClaimWhoseCreationGotNoReplyIsFound(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	config := testEnv.Config()
	lost := 0
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/lockclaims") || lost > 1 {
				return next.RoundTrip(r)
			}
			lost++
			if lost == 1 {
				return nil, errors.New("lost on its way there")
			}
			if response, err := next.RoundTrip(r); err == nil {
				must(t, response.Body.Close())
			}
			return nil, errors.New("lost on its way back")
		})
	})
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	must(t, err)
	o := &acquireOptions{claim: "mine"}
	in := &cluster{WithWatch: c, namespace: ns}
	claim, err := in.createClaim(t.Context(), o.newClaim(in, "ledger"))
	must(t, err)
	if claim.UID == "" || lost != 2 {
		t.Errorf("after %d lost replies the claim is %+v", lost, claim)
	}
	must(t, in.deleteClaim(t.Context(), claim))
	noClaims(t, ns)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAClaimThatSomebodyDeletesEndsTheWait(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	claimOn(t, ns, "first", "ledger")
	untilClaim(t, ns, "first", v1alpha1.ReasonGranted)
	done := make(chan result, 1)
	go func() { done <- distlock(t, ns, "acquire", "ledger", "--claim", "second") }()
	untilClaim(t, ns, "second", v1alpha1.ReasonWaiting)
	must(t, admin.Delete(t.Context(), &v1alpha1.LockClaim{ObjectMeta: metaName(ns, "second")}))
	(<-done).ends(t, exitLost, "deleted by somebody else")
}
