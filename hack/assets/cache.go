package assets

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// cache is one folder of binaries under DISTLOCK_CACHE, named after all that
// decides what is in it. It is complete or not there: it is filled elsewhere and
// renamed.
type cache struct {
	root    string // DISTLOCK_CACHE
	source  string // hack/controlplane in this source tree
	version string // of Kubernetes, such as v1.37.2
	digest  string // of what hack/controlplane is built from
}

// openCache needs to be called inside the source tree, which names the version.
func openCache() (*cache, error) {
	root, err := cacheRoot()
	if err != nil {
		return nil, err
	}
	tree, err := Root()
	if err != nil {
		return nil, err
	}
	source := filepath.Join(tree, "hack", "controlplane")
	c := &cache{root: root, source: source}
	digest := sha256.New()
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		content, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return nil, fmt.Errorf("reading what the control plane is built from: %w", err)
		}
		digest.Write(content)
		if name == "go.mod" {
			c.version = kubernetesVersion(content)
		}
	}
	if c.version == "" {
		return nil, fmt.Errorf("%s/go.mod requires no k8s.io/kubernetes", source)
	}
	c.digest = hex.EncodeToString(digest.Sum(nil))[:8]
	return c, nil
}

// cacheRoot is DISTLOCK_CACHE, by default "distlock" in the user's cache folder.
func cacheRoot() (string, error) {
	if given := os.Getenv("DISTLOCK_CACHE"); given != "" {
		if !filepath.IsAbs(given) {
			return "", fmt.Errorf("DISTLOCK_CACHE must be an absolute path, since it is used from several folders; it is %q", given)
		}
		return given, nil
	}
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no place for the cache, set DISTLOCK_CACHE: %w", err)
		}
		base = filepath.Join(home, ".cache")
	}
	return filepath.Join(base, "distlock"), nil
}

// Root is the top of DistLock's source tree, found upwards from the working
// directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "hack", "controlplane", "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside DistLock's source tree: no hack/controlplane above the working directory")
		}
		dir = parent
	}
}

var kubernetesRequired = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v\S+)`)

// kubernetesVersion reads a go.mod; "" means that it requires no Kubernetes.
func kubernetesVersion(gomod []byte) string {
	found := kubernetesRequired.FindSubmatch(gomod)
	if found == nil {
		return ""
	}
	return string(found[1])
}

func (c *cache) folder() string {
	return filepath.Join(c.root, "controlplane",
		fmt.Sprintf("%s-%s-%s-%s", c.version, runtime.GOOS, runtime.GOARCH, c.digest))
}

// lock waits until no other process fills this folder. The lock ends with the
// process that holds it, however it ends.
func (c *cache) lock(ctx context.Context, log io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(c.folder()), 0o755); err != nil {
		return nil, fmt.Errorf("making the cache: %w", err)
	}
	file, err := os.OpenFile(c.folder()+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("locking the cache: %w", err)
	}
	told := false
	err = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(context.Context) (bool, error) {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) {
			return true, err
		}
		if !told {
			_, _ = fmt.Fprintln(log, "assets: another run is making the control plane; waiting for it")
			told = true
		}
		return false, nil
	})
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("locking the cache: %w", err)
	}
	return func() { _ = file.Close() }, nil
}

// fill makes the folder. It is called under the lock.
func (c *cache) fill(ctx context.Context, o Options) error {
	parts, err := filepath.Glob(c.folder() + ".part-*")
	if err != nil {
		return err
	}
	for _, left := range parts { // of runs that were killed: only the lock's holder makes them
		_ = os.RemoveAll(left)
	}
	part, err := os.MkdirTemp(filepath.Dir(c.folder()), filepath.Base(c.folder())+".part-")
	if err != nil {
		return fmt.Errorf("making the cache: %w", err)
	}
	defer func() { _ = os.RemoveAll(part) }()

	begun := time.Now()
	if err := c.obtain(ctx, part, o); err != nil {
		return err
	}
	if missing := Missing(part); missing != nil {
		return fmt.Errorf("the control plane came without %v", missing)
	}
	if _, err := serverVersion(ctx, part); err != nil {
		return err
	}
	if err := os.Chmod(part, 0o755); err != nil {
		return err
	}
	_ = os.RemoveAll(c.folder()) // something incomplete, which only hands can have made
	if err := os.Rename(part, c.folder()); err != nil {
		return fmt.Errorf("moving the control plane into the cache: %w", err)
	}
	_, _ = fmt.Fprintf(o.Log, "assets: control plane ready after %s\n", time.Since(begun).Round(time.Second))
	return nil
}

// obtain puts the binaries into part.
func (c *cache) obtain(ctx context.Context, part string, o Options) error {
	switch o.From {
	case FromModules:
		return c.build(ctx, part, o.Log)
	case FromDownload:
		return c.download(ctx, part, o.Log)
	case FromAnywhere, "":
		err := c.download(ctx, part, o.Log)
		if err == nil || ctx.Err() != nil {
			return err
		}
		_, _ = fmt.Fprintf(o.Log, "assets: no release downloads: %v\nassets: building the control plane from Go modules instead\n", err)
		return c.build(ctx, part, o.Log)
	default:
		return fmt.Errorf("unknown source %q: it must be %s, %s or %s", o.From, FromAnywhere, FromDownload, FromModules)
	}
}
