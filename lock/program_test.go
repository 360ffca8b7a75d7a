package lock_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/distlock-dev/distlock/hack/process"
	"github.com/distlock-dev/distlock/lock"
)

// With this variable the test binary is a program that takes the lock "ledger" in the
// namespace it names, with its kubeconfig, and does what it is told to on its standard
// input, one line at a time:
//
//	write    a step: it looks at its context, and writes to the resource
//	write!   it writes without looking
//	release  it releases, and ends
//
// On its standard output it says what came of that.
const programVariable = "LOCK_TEST_NAMESPACE"

func runProgram(namespace string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	locks, err := lock.NewClient(nil, lock.Namespace(namespace))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	h, err := locks.Acquire(ctx, "ledger")
	if err != nil {
		return err
	}
	fmt.Println("token", h.Token())
	context.AfterFunc(h.Context(), func() { fmt.Println("ended", context.Cause(h.Context())) })
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch line := lines.Text(); {
		case line == "release":
			if err := h.Release(ctx); err != nil {
				return err
			}
			return locks.Close(ctx)
		case line == "write" && h.Context().Err() != nil:
			fmt.Println("stopped")
		default:
			status, err := writeTo(ctx, os.Getenv("RESOURCE"), h.Token())
			if err != nil {
				return err
			}
			fmt.Println(status)
		}
	}
	return nil
}

func writeTo(ctx context.Context, resource string, token int64) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, resource, strings.NewReader(strconv.FormatInt(token, 10)))
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// ServeHTTP lets a program write to a resource.
func (r *register) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	token, err := strconv.ParseInt(string(body), 10, 64)
	if err == nil {
		err = r.write(token)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
}

// realProgram is a program in a process of its own.
type realProgram struct {
	*process.Process
	stdin *os.File
	lines chan string
	heard []string // and not wanted yet
	t     *testing.T
}

func startProgram(t *testing.T, ns, kubeconfig string, resource *register) *realProgram {
	t.Helper()
	server := httptest.NewServer(resource)
	t.Cleanup(server.Close)
	inputEnd, stdin, err := os.Pipe()
	must(t, err)
	stdout, outputEnd, err := os.Pipe()
	must(t, err)
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), programVariable+"="+ns, "KUBECONFIG="+kubeconfig, "RESOURCE="+server.URL)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inputEnd, outputEnd, os.Stderr
	p := &realProgram{stdin: stdin, lines: make(chan string, 100), t: t}
	p.Process, err = process.Start(cmd)
	must(t, err)
	_, _ = inputEnd.Close(), outputEnd.Close()
	go func() {
		defer close(p.lines)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			p.lines <- lines.Text()
		}
		_ = stdout.Close()
	}()
	t.Cleanup(func() {
		p.Kill()
		_ = stdin.Close()
	})
	return p
}

// tell gives the program a line.
func (p *realProgram) tell(line string) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.stdin, line)
	must(p.t, err)
}

// says returns the first line that the program says of what is wanted; the others
// may be wanted later.
func (p *realProgram) says(prefixes ...string) string {
	p.t.Helper()
	wanted := func(line string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(line, prefix) })
	}
	deadline := time.After(patience)
	for {
		if i := slices.IndexFunc(p.heard, wanted); i >= 0 {
			line := p.heard[i]
			p.heard = slices.Delete(p.heard, i, i+1)
			return line
		}
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("the program ended, and never said %q, only %q", prefixes, p.heard)
			}
			p.heard = append(p.heard, line)
		case <-deadline:
			p.t.Fatalf("the program never said %q, only %q", prefixes, p.heard)
		}
	}
}

func (p *realProgram) token() int64 {
	p.t.Helper()
	token, err := strconv.ParseInt(strings.TrimPrefix(p.says("token "), "token "), 10, 64)
	must(p.t, err)
	return token
}

func (p *realProgram) signal(sig syscall.Signal) {
	p.t.Helper()
	must(p.t, p.Signal(sig))
}
