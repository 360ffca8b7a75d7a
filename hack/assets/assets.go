// Package assets finds, or makes, the folder of control plane binaries that the
// local cluster and the tests run: etcd, kube-apiserver, kube-controller-manager
// and kubectl. The folder also serves as KUBEBUILDER_ASSETS for envtest.
//
// It needs nothing but Go: where release downloads are reachable it takes those,
// elsewhere it builds hack/controlplane from Go modules. The result is cached by
// version, so this happens once on a machine.
package assets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
)

// Names are the binaries that a folder must hold to be complete.
var Names = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"}

// oldest is the first Kubernetes version in which MutatingAdmissionPolicy, on
// which the gate rests, is generally available.
var oldest = version.MustParseGeneric("1.36.0")

// ErrNone means that no complete folder is there yet: Ensure makes one.
var ErrNone = errors.New("no control plane binaries on this machine yet; `make assets` gets them")

// Source says where Ensure may take the binaries from when none are cached.
type Source string

const (
	// FromAnywhere downloads releases where they can be reached and builds otherwise.
	FromAnywhere Source = "anywhere"
	// FromDownload takes releases or fails.
	FromDownload Source = "download"
	// FromModules builds hack/controlplane, without asking for releases.
	FromModules Source = "modules"
)

// Options of Ensure.
type Options struct {
	// From defaults to FromAnywhere.
	From Source
	// Log gets the progress, for people; nil discards it.
	Log io.Writer
}

// Find returns a complete folder that is already there: KUBEBUILDER_ASSETS, or
// else the cached one. It makes nothing; without one it returns ErrNone.
func Find(ctx context.Context) (string, error) {
	given, err := fromEnv(ctx, io.Discard)
	if given != "" || err != nil {
		return given, err
	}
	c, err := openCache()
	if err != nil {
		return "", err
	}
	if Missing(c.folder()) != nil {
		return "", ErrNone
	}
	return c.folder(), nil
}

// Ensure returns a complete folder and makes it if need be, which takes seconds
// to minutes with a download and up to half an hour with a build. Two calls at
// once, in whatever processes, make it once: the other one waits.
func Ensure(ctx context.Context, o Options) (string, error) {
	if o.Log == nil {
		o.Log = io.Discard
	}
	if given, err := fromEnv(ctx, o.Log); given != "" || err != nil {
		return given, err
	}
	c, err := openCache()
	if err != nil {
		return "", err
	}
	if Missing(c.folder()) == nil {
		return c.folder(), nil
	}
	unlock, err := c.lock(ctx, o.Log)
	if err != nil {
		return "", err
	}
	defer unlock()
	if Missing(c.folder()) == nil { // another run made it while this one waited
		return c.folder(), nil
	}
	return c.folder(), c.fill(ctx, o)
}

// Missing returns the names that are not there as executable files.
func Missing(folder string) []string {
	var missing []string
	for _, name := range Names {
		info, err := os.Stat(filepath.Join(folder, name))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || info.Size() == 0 {
			missing = append(missing, name)
		}
	}
	return missing
}

// fromEnv returns KUBEBUILDER_ASSETS when it can be used as it is, and "" when it
// is unset or lacks a binary: setup-envtest never provides kube-controller-manager.
// A folder that does not exist, or is too old, is a mistake and an error.
func fromEnv(ctx context.Context, log io.Writer) (string, error) {
	given := os.Getenv("KUBEBUILDER_ASSETS")
	if given == "" {
		return "", nil
	}
	folder, err := filepath.Abs(given)
	if err != nil {
		return "", fmt.Errorf("KUBEBUILDER_ASSETS: %w", err)
	}
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return "", fmt.Errorf("KUBEBUILDER_ASSETS is set to %s, which is not a folder: unset it, or point it at one that holds %s",
			given, strings.Join(Names, ", "))
	}
	if missing := Missing(folder); missing != nil {
		_, _ = fmt.Fprintf(log, "assets: KUBEBUILDER_ASSETS (%s) has no %s: not used\n", given, strings.Join(missing, ", "))
		return "", nil
	}
	if _, err := serverVersion(ctx, folder); err != nil {
		return "", fmt.Errorf("KUBEBUILDER_ASSETS (%s): %w", given, err)
	}
	return folder, nil
}

// serverVersion asks the kube-apiserver in folder for its version, which is a
// proof that it runs on this machine, and refuses one that is too old.
func serverVersion(ctx context.Context, folder string) (*version.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(folder, "kube-apiserver"), "--version").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver --version: %w: %s", err, out)
	}
	v, err := version.ParseGeneric(strings.TrimPrefix(strings.TrimSpace(string(out)), "Kubernetes "))
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver --version: %w", err)
	}
	if v.LessThan(oldest) {
		return nil, fmt.Errorf("kube-apiserver is version %s; DistLock needs %s or newer", v, oldest)
	}
	return v, nil
}
