package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// place is the folder of one control plane. A supervisor holds a lock in it as long
// as it lives, so nobody has to trust a process id.
type place string

func (p place) lockFile() string   { return filepath.Join(string(p), "supervisor.lock") }
func (p place) logFile() string    { return filepath.Join(string(p), "supervisor.log") }
func (p place) clusterDir() string { return filepath.Join(string(p), "cluster") }
func (p place) kubeconfig() string { return filepath.Join(p.clusterDir(), "kubeconfig") }

// controllerKubeconfig is that of the controller's service account, for a day.
func (p place) controllerKubeconfig() string {
	return filepath.Join(p.clusterDir(), "kubeconfigs", v1alpha1.ControllerNamespace+"_"+v1alpha1.ControllerServiceAccount)
}

// errRunning means that a supervisor is alive.
var errRunning = errors.New("a control plane runs here already")

// lock takes the place for this process until the file is closed, and leaves the
// process id in it.
func (p place) lock() (*os.File, error) {
	file, err := os.OpenFile(p.lockFile(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(errRunning, file.Close())
	}
	return file, errors.Join(file.Truncate(0), writePID(file))
}

func writePID(file *os.File) error {
	_, err := fmt.Fprintln(file, os.Getpid())
	return err
}

// supervisor is the process id of the living supervisor, or 0.
func (p place) supervisor() (int, error) {
	file, err := os.OpenFile(p.lockFile(), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		return 0, nil // nobody holds it; closing the file gives it back
	}
	content, err := os.ReadFile(p.lockFile())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}

// remove removes what this command put there and, if nothing else is, the folder.
func (p place) remove() error {
	errs := []error{os.RemoveAll(p.clusterDir())}
	for _, file := range []string{p.logFile(), p.lockFile(), string(p)} {
		err := os.Remove(file)
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
