package fence

import (
	"context"
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/distlock-dev/distlock/hack/assets"
	"github.com/distlock-dev/distlock/hack/process"
)

// nobody is who servers run as when the tests run as root; PostgreSQL refuses root.
const nobody = 65534

// A server is the programs of a database, and a folder of its own.
type server struct {
	// root has usr/ below it: the system's, or what make databases has unpacked.
	root string
	// dir belongs to whom the server runs as.
	dir string
}

// newServer looks for the program, such as usr/sbin/mariadbd, or skips the test.
func newServer(t *testing.T, program string) server {
	t.Helper()
	tree, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	s := server{root: "/", dir: t.TempDir()}
	if !s.has(program) {
		if s.root = filepath.Join(tree, "bin", "databases"); !s.has(program) {
			t.Skipf("SKIPPED: no /%s here, and make databases has not unpacked one", program)
		}
	}
	if os.Getuid() == 0 {
		s.handOver(t)
	}
	return s
}

// handOver makes root and dir nobody's. Its parents may be closed to everybody else,
// and so may those of the tree.
func (s *server) handOver(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fence-") //nolint:usetesting // t.TempDir is in a folder that only root may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s.dir = filepath.Join(dir, "server")
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if s.root != "/" {
		programs := filepath.Join(dir, "programs")
		if err := os.CopyFS(programs, os.DirFS(s.root)); err != nil {
			t.Fatal(err)
		}
		s.root = programs
	}
	for path, mode := range map[string]os.FileMode{dir: 0o755, s.dir: 0o700} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(s.dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
}

func (s *server) has(program string) bool { return s.glob(program) != "" }

// glob is the last path below root that matches, so of many versions the newest.
func (s *server) glob(pattern string) string {
	found, _ := filepath.Glob(filepath.Join(s.root, pattern))
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

// command is one of the server's user.
func (s *server) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.glob(program), args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC", "HOME="+s.dir)
	if libraries := s.glob("usr/lib/*-linux-gnu"); s.root != "/" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+libraries+":"+s.glob("lib/*-linux-gnu"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return cmd
}

// run runs a program to its end.
func (s *server) run(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := s.command(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

// start starts a daemon, which ends with the test, and returns when a connection to
// it works.
func (s *server) start(t *testing.T, db *sql.DB, program string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := s.command(context.WithoutCancel(t.Context()), program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	daemon, err := process.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !daemon.Stop(patience) {
			t.Errorf("%s did not end when asked to", program)
		}
		if said, err := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("what %s said (error %v):\n%s", program, err, said)
		}
	})
	err = wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return daemon.Exited() || db.PingContext(ctx) == nil, nil
	})
	if err != nil || daemon.Exited() {
		t.Fatalf("%s did not come up: %v", program, err)
	}
}
