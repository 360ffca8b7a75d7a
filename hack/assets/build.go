package assets

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// build compiles hack/controlplane into part and links the four names to it. With
// a cold build cache this takes minutes: 13 on two cores.
func (c *cache) build(ctx context.Context, part string, log io.Writer) error {
	_, _ = fmt.Fprintf(log, "assets: building etcd, Kubernetes %s and kubectl from Go modules: once, some minutes (13 on two cores)\n", c.version)
	p := &progress{log: log, begun: time.Now()}
	listed, err := c.run(ctx, p, "list", "-deps", ".")
	if err != nil {
		return err
	}
	p.total = bytes.Count(listed, []byte("\n"))
	binary := filepath.Join(part, "controlplane")
	if _, err := c.run(ctx, p, "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", c.ldflags(), "-o", binary, "."); err != nil {
		return err
	}
	for _, name := range Names {
		if err := os.Symlink("controlplane", filepath.Join(part, name)); err != nil {
			return err
		}
	}
	return nil
}

// ldflags leave out the debugging tables and stamp the version, which discovery,
// `kubectl version` and the user agents show.
func (c *cache) ldflags() string {
	numbers := strings.SplitN(strings.TrimPrefix(c.version, "v"), ".", 3)
	stamps := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		stamps = append(stamps,
			"-X", pkg+".gitVersion="+c.version, "-X", pkg+".gitMajor="+numbers[0], "-X", pkg+".gitMinor="+numbers[1],
			"-X", pkg+".gitTreeState=clean", "-X", pkg+".gitCommit=unknown")
	}
	return strings.Join(stamps, " ")
}

// run runs the go command in hack/controlplane and returns its standard output.
// What it says on standard error goes to p; on a failure the last lines of it are
// part of the error.
func (c *cache) run(ctx context.Context, p *progress, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = c.source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	var out bytes.Buffer
	cmd.Stdout = &out
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("go %s: %w", args[0], err)
	}
	var last []string
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		p.see(lines.Text())
		if last = append(last, lines.Text()); len(last) > 20 {
			last = last[1:]
		}
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("go %s of the control plane: %w\n%s", args[0], err, strings.Join(last, "\n"))
	}
	return out.Bytes(), nil
}

// progress turns what `go build -v` says into a line now and then.
type progress struct {
	log        io.Writer
	begun      time.Time
	told       time.Time
	total      int // packages
	compiled   int // that were not in the build cache
	downloaded int // modules
}

// tellEvery is how often a person wants to hear that it goes on.
const tellEvery = 10 * time.Second

func (p *progress) see(line string) {
	switch {
	case strings.HasPrefix(line, "go: downloading "):
		p.downloaded++
	case !strings.Contains(line, " "): // -v: the import path of a package to compile
		p.compiled++
	}
	if time.Since(p.told) < tellEvery {
		return
	}
	p.told = time.Now()
	_, _ = fmt.Fprintln(p.log, p)
}

// String is "assets: 42 % (1147 of 2730 packages, 5m20s)". The percentage jumps
// where packages are in the build cache: they are not reported.
func (p *progress) String() string {
	elapsed := time.Since(p.begun).Round(time.Second)
	if p.total == 0 {
		return fmt.Sprintf("assets: downloading modules (%d, %s)", p.downloaded, elapsed)
	}
	return fmt.Sprintf("assets: %3d %% (%d of %d packages, %s)", p.compiled*100/p.total, p.compiled, p.total, elapsed)
}
