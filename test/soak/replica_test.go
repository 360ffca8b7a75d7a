package soak

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/distlock-dev/distlock/hack/process"
)

// restartAfter is how long a replica that ended stays away.
const restartAfter = time.Second

// What a replica's metrics say.
const (
	leadsMetric      = "leader_election_master_status"
	goroutinesMetric = "go_goroutines"
	memoryMetric     = "process_resident_memory_bytes"
	heapMetric       = "go_memstats_heap_inuse_bytes"
)

// replica is the controller as users run it, in a process of its own, which is
// started again whenever it ends.
type replica struct {
	name, log string
	program   string
	args, env []string
	metrics   string // address

	mu     sync.Mutex
	proc   *process.Process
	starts int
}

func newReplica(ctx context.Context, program, kubeconfig, name, log string) (*replica, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return nil, err
	}
	return &replica{
		name: name, log: log, program: program, metrics: address,
		args: []string{"--leader-elect", "--health-probe-bind-address=0", "--metrics-bind-address=" + address, "--metrics-secure=false"},
		env:  append(os.Environ(), "KUBECONFIG="+kubeconfig),
	}, nil
}

// keep runs the replica until ctx ends, and then stops it.
func (r *replica) keep(ctx context.Context) error {
	for {
		p, err := r.start()
		if err != nil {
			return err
		}
		again := false
		select {
		case <-p.Done():
			again = pause(ctx, restartAfter)
		case <-ctx.Done():
		}
		if !again {
			p.Stop(10 * time.Second)
			return nil
		}
	}
}

func (r *replica) start() (*process.Process, error) {
	log, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(r.program, r.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = r.env, log, log
	p, err := process.Start(cmd)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proc, r.starts = p, r.starts+1
	return p, nil
}

func (r *replica) process() *process.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proc
}

// ended is how often the process has ended, by a kill or by itself.
func (r *replica) ended() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(0, r.starts-1)
}

// kill is kill -9.
func (r *replica) kill() {
	if p := r.process(); p != nil {
		_ = p.Signal(syscall.SIGKILL)
	}
}

// freeze has the process stand still for a while; another one leads before it goes
// on.
func (r *replica) freeze(ctx context.Context, d time.Duration) {
	p := r.process()
	_ = p.Signal(syscall.SIGSTOP)
	pause(ctx, d)
	_ = p.Signal(syscall.SIGCONT)
}

// gauges returns the metrics that have no labels, or only the first of those that
// have.
func (r *replica) gauges(ctx context.Context) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.metrics+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	found := map[string]float64{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		name, _, _ = strings.Cut(name, "{")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			if _, ok := found[name]; !ok {
				found[name] = v
			}
		}
	}
	return found, nil
}

// panics are the lines of the log that tell of a panic.
func (r *replica) panics() ([]string, error) {
	log, err := os.ReadFile(r.log)
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range bytes.Lines(log) {
		if bytes.Contains(line, []byte("panic")) {
			found = append(found, fmt.Sprintf("%s: %s", r.name, bytes.TrimSpace(line)))
		}
	}
	return found, nil
}
