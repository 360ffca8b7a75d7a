package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	temporaryPrefix = "distlock-cluster-"
	// settled is how old a folder must be to be swept: its owner locks it a moment
	// after it made it.
	settled = time.Minute
)

// temporary is a folder that is removed when its owner is done with it, or by the
// next one that makes such a folder when the owner was killed.
type temporary struct {
	dir  string
	lock *os.File
}

func newTemporary() (*temporary, error) {
	sweepTemporary()
	dir, err := os.MkdirTemp("", temporaryPrefix)
	if err != nil {
		return nil, err
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &temporary{dir: dir, lock: lock}, nil
}

// remove may be called twice, and on nil.
func (t *temporary) remove() error {
	if t == nil {
		return nil
	}
	_ = t.lock.Close()
	return os.RemoveAll(t.dir)
}

// sweepTemporary removes the folders of owners that were killed. It is best effort:
// what it fails to remove is somebody else's, or the next one's to try.
func sweepTemporary() {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), temporaryPrefix+"*"))
	for _, dir := range folders {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < settled {
			continue
		}
		if lock, err := lockFolder(dir); err == nil {
			_ = os.RemoveAll(dir)
			_ = lock.Close()
		}
	}
}

// lockFolder locks a folder until the file is closed or this process ends.
func lockFolder(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
