package env

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/distlock-dev/distlock/hack/assets"
)

// Commands are the shell commands of a page, relative to the top of the tree, that
// stand behind the comment `<!-- NAME: run by … -->`.
func Commands(t *testing.T, page, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(t), page))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)<!-- " + name + ": run by [a-z/]+ -->\n```sh\n(.*?)```").FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s has no commands marked %q", page, name)
	}
	return string(found[1])
}

// Shell runs commands in a folder as a user would whose kubectl is the control
// plane's and looks at a namespace. It returns what they print.
func (e *Env) Shell(t *testing.T, dir, namespace, script string) string {
	t.Helper()
	out, err := e.TryShell(t.Context(), t, dir, namespace, script)
	if err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return out
}

// TryShell is Shell for commands that may fail.
func (e *Env) TryShell(ctx context.Context, t *testing.T, dir, namespace, script string) (string, error) {
	t.Helper()
	folder, err := assets.Find(ctx)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	content, err := os.ReadFile(e.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kubeconfig, content, 0o600); err != nil {
		t.Fatal(err)
	}
	script = "kubectl config set-context --current --namespace=" + namespace + " >/dev/null\n" + script
	cmd := exec.CommandContext(ctx, "sh", "-euc", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+folder+string(os.PathListSeparator)+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
