package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// up starts its own program as the supervisor: in a test that is the test binary.
func TestMain(m *testing.M) {
	if os.Args[len(os.Args)-1] == "supervise" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestUpIsRepeatableAndDownCleansUpAfterAKilledSupervisor(t *testing.T) {
	p := place(filepath.Join(t.TempDir(), "local"))
	t.Cleanup(func() { _ = down(context.WithoutCancel(t.Context()), p) })
	if err := up(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	first := supervisorOf(t, p)
	if err := up(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if again := supervisorOf(t, p); again != first {
		t.Errorf("a second up started another supervisor: %d, then %d", first, again)
	}
	if err := status(t.Context(), p); err != nil {
		t.Error(err)
	}

	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		pid, err := p.supervisor()
		return pid == 0, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := status(t.Context(), p); err == nil {
		t.Error("status says that it runs")
	}
	if err := down(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, p)
	if err := down(t.Context(), p); err != nil {
		t.Errorf("a second down: %v", err)
	}
}

func TestDownStopsARunningControlPlane(t *testing.T) {
	p := place(filepath.Join(t.TempDir(), "local"))
	if err := up(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := down(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, p)
}

func TestAFailedUpShowsTheReason(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", "/no/such/folder")
	p := place(filepath.Join(t.TempDir(), "local"))
	if err := up(t.Context(), p); err == nil || !strings.Contains(err.Error(), "is not a folder") {
		t.Errorf("got error %v", err)
	}
	if err := down(t.Context(), p); err != nil {
		t.Error(err)
	}
}

func TestDownRemovesOnlyWhatIsItsOwn(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := down(t.Context(), place(dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func supervisorOf(t *testing.T, p place) int {
	t.Helper()
	pid, err := p.supervisor()
	if err != nil || pid == 0 {
		t.Fatalf("supervisor %d, error %v", pid, err)
	}
	return pid
}

// wantNothingLeft looks for files, and for processes with the place among their
// arguments.
func wantNothingLeft(t *testing.T, p place) {
	t.Helper()
	if _, err := os.Stat(string(p)); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: error %v", err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		out, err := exec.CommandContext(ctx, "ps", "-A", "-o", "command=").Output()
		return !strings.Contains(string(out), string(p)), err
	})
	if err != nil {
		t.Errorf("a process is still there: %v", err)
	}
}
