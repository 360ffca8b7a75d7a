package cluster

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestOnlyFoldersOfKilledOwnersAreSwept(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	owned, err := newTemporary()
	if err != nil {
		t.Fatal(err)
	}
	abandoned, fresh := filepath.Join(os.TempDir(), temporaryPrefix+"abandoned"), filepath.Join(os.TempDir(), temporaryPrefix+"fresh")
	for _, dir := range []string{abandoned, fresh} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	for _, dir := range []string{abandoned, owned.dir} {
		if err := os.Chtimes(dir, old, old); err != nil {
			t.Fatal(err)
		}
	}
	sweepTemporary()
	for dir, want := range map[string]bool{abandoned: false, fresh: true, owned.dir: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: there %t, want %t", filepath.Base(dir), err == nil, want)
		}
	}
	for range 2 {
		if err := owned.remove(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(owned.dir); err == nil {
		t.Error("it is still there after remove")
	}
}
