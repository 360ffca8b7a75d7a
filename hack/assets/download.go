package assets

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	// reachTimeout bounds the question whether releases can be reached at all, so
	// that a machine without internet goes on to build within seconds.
	reachTimeout = 5 * time.Second
	// downloadTimeout bounds everything that is downloaded, some 200 MB.
	downloadTimeout = 15 * time.Minute
)

// The addresses are variables for the tests.
var (
	releases = "https://dl.k8s.io/release"
	// envtestIndex is what setup-envtest reads first.
	envtestIndex = "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/envtest-releases.yaml"
)

// setupEnvtest is pinned in hack/tools/go.mod.
const setupEnvtest = "sigs.k8s.io/controller-runtime/tools/setup-envtest"

// download puts released binaries into part: etcd, kube-apiserver and kubectl as
// setup-envtest provides them, and the kube-controller-manager of the same version.
func (c *cache) download(ctx context.Context, part string, log io.Writer) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("kube-controller-manager is released for linux only, not for %s", runtime.GOOS)
	}
	for _, url := range []string{releases + "/" + c.version + "/bin/linux/" + runtime.GOARCH + "/kube-controller-manager.sha256", envtestIndex} {
		if err := reachable(ctx, url); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()

	_, _ = fmt.Fprintln(log, "assets: setup-envtest downloads etcd, kube-apiserver and kubectl")
	if err := c.fromEnvtest(ctx, part); err != nil {
		return err
	}
	// setup-envtest may have an older patch release than go.mod: stay with its.
	version, err := serverVersion(ctx, part)
	if err != nil {
		return err
	}
	url := fmt.Sprintf("%s/v%s/bin/linux/%s/kube-controller-manager", releases, version, runtime.GOARCH)
	_, _ = fmt.Fprintf(log, "assets: downloading %s\n", url)
	return fetchVerified(ctx, url, filepath.Join(part, "kube-controller-manager"))
}

func (c *cache) fromEnvtest(ctx context.Context, part string) error {
	store, err := os.MkdirTemp(part, "envtest-")
	if err != nil {
		return err
	}
	defer removeAll(store)
	minor := strings.TrimPrefix(c.version[:strings.LastIndex(c.version, ".")], "v")
	cmd := exec.CommandContext(ctx, "go", "run", "-modfile=hack/tools/go.mod", setupEnvtest,
		"use", minor+".x", "--bin-dir", store, "-p", "path")
	cmd.Dir = filepath.Dir(filepath.Dir(c.source))
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("setup-envtest: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if err := os.Rename(filepath.Join(strings.TrimSpace(string(out)), name), filepath.Join(part, name)); err != nil {
			return fmt.Errorf("setup-envtest came without %s: %w", name, err)
		}
	}
	return nil
}

// removeAll removes a tree in which setup-envtest may have made folders read-only.
func removeAll(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(path, 0o755)
		}
		return nil
	})
	_ = os.RemoveAll(dir)
}

func reachable(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	body, err := get(ctx, url)
	if err != nil {
		return err
	}
	return body.Close()
}

// fetchVerified writes url to path, executable, after comparing it with the
// SHA-256 that lies beside it.
func fetchVerified(ctx context.Context, url, path string) error {
	sum, err := get(ctx, url+".sha256")
	if err != nil {
		return err
	}
	defer func() { _ = sum.Close() }()
	want, err := io.ReadAll(io.LimitReader(sum, 1024))
	if err != nil {
		return fmt.Errorf("%s.sha256: %w", url, err)
	}
	body, err := get(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	digest := sha256.New()
	_, err = io.Copy(io.MultiWriter(file, digest), body)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	if got := hex.EncodeToString(digest.Sum(nil)); got != string(bytes.TrimSpace(want)) {
		return fmt.Errorf("%s has SHA-256 %s, not %s", url, got, bytes.TrimSpace(want))
	}
	return nil
}

// get returns the body of a successful answer.
func get(ctx context.Context, url string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return response.Body, nil
}
