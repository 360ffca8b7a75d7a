package assets

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeFolder makes a folder of scripts in place of the binaries.
func fakeFolder(t *testing.T, version string, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		script := "#!/bin/sh\necho Kubernetes " + version + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestKubebuilderAssetsIsUsedWhenComplete(t *testing.T) {
	want := fakeFolder(t, "v1.36.0", Names...)
	t.Setenv("KUBEBUILDER_ASSETS", want)
	for name, call := range map[string]func() (string, error){
		"Find":   func() (string, error) { return Find(t.Context()) },
		"Ensure": func() (string, error) { return Ensure(t.Context(), Options{}) },
	} {
		if got, err := call(); got != want || err != nil {
			t.Errorf("%s: got %q and error %v, want %q", name, got, err, want)
		}
	}
}

func TestKubebuilderAssetsWithoutControllerManagerIsPassedOver(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", fakeFolder(t, "v1.37.0", "etcd", "kube-apiserver", "kubectl"))
	var log strings.Builder
	got, err := fromEnv(t.Context(), &log)
	if got != "" || err != nil {
		t.Errorf("got %q and error %v, want neither", got, err)
	}
	if !strings.Contains(log.String(), "has no kube-controller-manager") {
		t.Errorf("the log does not say what is missing: %q", log.String())
	}
}

func TestMistakesInTheEnvironmentAreErrorsThatSayWhatToDo(t *testing.T) {
	for _, test := range []struct{ name, variable, value, want string }{
		{"no such folder", "KUBEBUILDER_ASSETS", "/no/such/folder", "is not a folder"},
		{"too old", "KUBEBUILDER_ASSETS", fakeFolder(t, "v1.35.9", Names...), "needs 1.36.0 or newer"},
		{"relative cache", "DISTLOCK_CACHE", "cache", "must be an absolute path"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("KUBEBUILDER_ASSETS", "")
			t.Setenv(test.variable, test.value)
			if got, err := Ensure(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q and error %v, want one with %q", got, err, test.want)
			}
		})
	}
}

func TestWithoutACacheFindSaysHowToFillIt(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", "")
	t.Setenv("DISTLOCK_CACHE", t.TempDir())
	if _, err := Find(t.Context()); err != ErrNone { //nolint:errorlint // returned as it is
		t.Errorf("got error %v, want ErrNone", err)
	}
}

func TestAPartialFolderNeverLooksComplete(t *testing.T) {
	if missing := Missing(fakeFolder(t, "v1.37.2", Names...)); missing != nil {
		t.Fatalf("complete, but %v is missing", missing)
	}
	for name, spoil := range map[string]func(path string) error{
		"empty":          func(path string) error { return os.Truncate(path, 0) },
		"not executable": func(path string) error { return os.Chmod(path, 0o644) },
		"a broken symlink": func(path string) error {
			_ = os.Remove(path)
			return os.Symlink("gone", path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := fakeFolder(t, "v1.37.2", Names...)
			if err := spoil(filepath.Join(dir, "kubectl")); err != nil {
				t.Fatal(err)
			}
			if missing := Missing(dir); len(missing) != 1 || missing[0] != "kubectl" {
				t.Errorf("got %v missing", missing)
			}
		})
	}
}

func TestTheVersionComesFromGoMod(t *testing.T) {
	c := testCache(t)
	if c.version == "" || !strings.Contains(c.folder(), c.version) {
		t.Errorf("version %q, folder %q", c.version, c.folder())
	}
	if got := kubernetesVersion([]byte("require (\n\tk8s.io/kubernetes v1.2.3\n)")); got != "v1.2.3" {
		t.Errorf("got %q", got)
	}
	if !strings.Contains(c.ldflags(), "k8s.io/component-base/version.gitVersion="+c.version+" ") {
		t.Errorf("the version is not stamped: %s", c.ldflags())
	}
}

func TestASecondRunWaitsForTheFirst(t *testing.T) {
	c := testCache(t)
	unlock, err := c.lock(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	waits, told := io.Pipe()
	locked := make(chan error)
	go func() {
		unlock, err := c.lock(t.Context(), told)
		if err == nil {
			unlock()
		}
		locked <- err
	}()
	if _, err := waits.Read(make([]byte, 100)); err != nil { // "another run …": it has tried
		t.Fatal(err)
	}
	unlock()
	if err := <-locked; err != nil {
		t.Errorf("the second run: %v", err)
	}
}

func TestAFailedRunLeavesNothingBehind(t *testing.T) {
	c := testCache(t)
	c.source = t.TempDir() // nothing to build here
	if err := os.MkdirAll(filepath.Dir(c.folder()), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.fill(t.Context(), Options{From: FromModules, Log: io.Discard}); err == nil {
		t.Error("building nothing succeeded")
	}
	if left, _ := filepath.Glob(c.folder() + "*"); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

func TestADownloadThatDoesNotMatchItsSumIsRefused(t *testing.T) {
	binary := []byte("binary")
	sums := map[string]string{
		"/good": fmt.Sprintf("%x\n", sha256.Sum256(binary)),
		"/bad":  fmt.Sprintf("%x", sha256.Sum256([]byte("other"))),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sum, ok := sums[strings.TrimSuffix(r.URL.Path, ".sha256")]; ok && strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = io.WriteString(w, sum)
			return
		}
		_, _ = w.Write(binary)
	}))
	t.Cleanup(server.Close)

	if err := fetchVerified(t.Context(), server.URL+"/good", filepath.Join(t.TempDir(), "f")); err != nil {
		t.Error(err)
	}
	err := fetchVerified(t.Context(), server.URL+"/bad", filepath.Join(t.TempDir(), "f"))
	if err == nil || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("got error %v, want one about SHA-256", err)
	}
}

func TestAMachineWithoutReleasesGoesOnToBuild(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	before := releases
	releases = server.URL
	t.Cleanup(func() { releases = before })

	c := testCache(t)
	c.source = t.TempDir()
	var log strings.Builder
	err := c.obtain(t.Context(), t.TempDir(), Options{From: FromAnywhere, Log: &log})
	if err == nil || !strings.Contains(err.Error(), "go list of the control plane") {
		t.Errorf("got error %v, want one from the build", err)
	}
	if !strings.Contains(log.String(), "from Go modules instead") {
		t.Errorf("the log does not say so: %q", log.String())
	}
}

func TestAnUnknownSourceIsNamed(t *testing.T) {
	err := testCache(t).obtain(t.Context(), t.TempDir(), Options{From: "moon", Log: io.Discard})
	if err == nil || !strings.Contains(err.Error(), `"moon"`) {
		t.Errorf("got error %v", err)
	}
}

func TestACancelledRunDoesNotGoOnToBuild(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var log strings.Builder
	if err := testCache(t).obtain(ctx, t.TempDir(), Options{Log: &log}); err == nil {
		t.Error("no error")
	}
	if strings.Contains(log.String(), "building") {
		t.Errorf("went on: %q", log.String())
	}
}

// testCache is the cache of this source tree under a folder of the test's own.
func testCache(t *testing.T) *cache {
	t.Helper()
	t.Setenv("DISTLOCK_CACHE", t.TempDir())
	c, err := openCache()
	if err != nil {
		t.Fatal(err)
	}
	return c
}
