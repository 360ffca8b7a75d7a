// Package metrics tests the metrics as an operator meets them: the endpoint of the
// real manager, the alerts, the dashboard, and the table in the docs.
package metrics

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/distlock-dev/distlock/hack/assets"
)

// read reads a file of the source tree.
func read(t *testing.T, path ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(inTree(t, path...))
	must(t, err)
	return content
}

func inTree(t *testing.T, path ...string) string {
	t.Helper()
	tree, err := assets.Root()
	must(t, err)
	return filepath.Join(append([]string{tree}, path...)...)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
