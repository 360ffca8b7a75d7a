//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distlock-dev/distlock/test/env"
)

const reference = "docs/kubectl.md"

// asKubectlPlugin runs a script in which kubectl finds the plugin.
func asKubectlPlugin(t *testing.T, ns, script string) string {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	plugin := "#!/bin/sh\n" + asPluginEnv + "=1 exec " + self + ` "$@"` + "\n"
	must(t, os.WriteFile(filepath.Join(dir, "kubectl-distlock"), []byte(plugin), 0o755))
	script = strings.ReplaceAll(script, "/usr/local/bin", dir)
	return testEnv.Shell(t, dir, ns, `export PATH="`+dir+`:$PATH"`+"\n"+script)
}

func TestKubectlRunsThePluginAndCompletesItsArguments(t *testing.T) {
	ns := ledger(t)
	out := asKubectlPlugin(t, ns, `
kubectl distlock run ledger --wait 1m -- sh -c 'echo "runs with $DISTLOCK_NAME"; exit 3' || echo "code $?"
`+env.Commands(t, reference, "complete")+`
kubectl __complete distlock describe l`)
	for _, want := range []string{"runs with ledger\n", "code 3\n", "ledger\n:4"} {
		if !strings.Contains(out, want) {
			t.Errorf("prints %q, and not %q", out, want)
		}
	}
	freeAgain(t, ns)
}

func TestTheScriptInTheReferenceTakesTheLockAndGivesItBack(t *testing.T) {
	ns := ledger(t)
	out := asKubectlPlugin(t, ns, env.Commands(t, reference, "acquire")+`
kubectl distlock list
echo "works with $DISTLOCK_NAME and $DISTLOCK_FENCING_TOKEN"`)
	if !strings.Contains(out, "ledger   LockClaim/ledger-") || !strings.Contains(out, "works with ledger and ") {
		t.Errorf("prints %q", out)
	}
	freeAgain(t, ns)
}
