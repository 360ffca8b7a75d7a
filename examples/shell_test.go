package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestShellScriptsTakeTurnsWithKubectlAlone has several append to a file, which would
// mix if two did it at a time.
func TestShellScriptsTakeTurnsWithKubectlAlone(t *testing.T) {
	ns := namespace(t, "nightly/lock.yaml")
	kubectlIn(t, ns, "patch", "distlock", "nightly", "--type=merge", "-p", `{"spec":{"minHoldSeconds":0}}`)
	file := filepath.Join(t.TempDir(), "file")
	var all sync.WaitGroup
	for range 5 {
		cmd := in(t, ns, "shell/with-lock.sh", "nightly", "sh", "-c",
			`echo "begin $DISTLOCK_FENCING_TOKEN" >> "$0"; sleep 0.3; echo "end $DISTLOCK_FENCING_TOKEN" >> "$0"`, file)
		all.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	all.Wait()
	text, err := os.ReadFile(file)
	must(t, err)
	tokens := turns(t, string(text))
	if len(tokens) != 5 || !slices.IsSorted(tokens) {
		t.Errorf("tokens %v", tokens)
	}
	if claims := kubectlIn(t, ns, "get", "lockclaims", "-o", "name"); claims != "" {
		t.Errorf("left behind: %s", claims)
	}
}

// turns are the tokens of those that wrote to a file in turns, one begin and one end each.
func turns(t *testing.T, text string) (tokens []int) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		begun, ended := strings.TrimPrefix(lines[i], "begin "), strings.TrimPrefix(lines[i+1], "end ")
		token, err := strconv.Atoi(begun)
		if begun != ended || err != nil {
			t.Fatalf("two at a time: %q", lines)
		}
		tokens = append(tokens, token)
	}
	return tokens
}

// A script that is stopped while it waits, or works, leaves no claim.
func TestAShellScriptThatIsStoppedLeavesNoClaim(t *testing.T) {
	ns := namespace(t, "nightly/lock.yaml")
	holder := in(t, ns, "shell/with-lock.sh", "nightly", "sleep", "300")
	waiter := in(t, ns, "shell/with-lock.sh", "nightly", "true")
	for _, cmd := range []*exec.Cmd{holder, waiter} {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		must(t, cmd.Start())
		want := "True"
		if cmd == waiter {
			want = "False"
		}
		deadline := time.Now().Add(2 * time.Minute)
		for !strings.Contains(kubectlIn(t, ns, "get", "lockclaims", "-o", "jsonpath={.items[*].status.conditions[0].status}"), want) {
			if time.Now().After(deadline) {
				t.Fatalf("no claim with Granted=%s", want)
			}
		}
	}
	for _, cmd := range []*exec.Cmd{waiter, holder} {
		must(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM))
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 143 {
			t.Errorf("exit code %d, want 143", code)
		}
	}
	if claims := kubectlIn(t, ns, "get", "lockclaims", "-o", "name"); claims != "" {
		t.Errorf("left behind: %s", claims)
	}
}

func kubectlIn(t *testing.T, ns string, args ...string) string {
	t.Helper()
	out, err := testEnv.Kubectl(t.Context(), append([]string{"-n", ns}, args...)...)
	if err != nil {
		t.Fatal(err, string(out))
	}
	return strings.TrimSpace(string(out))
}
