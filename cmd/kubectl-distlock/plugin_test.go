package main

import (
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func TestEveryVerbHasHelpWithExamples(t *testing.T) {
	streams, _, _, _ := genericiooptions.NewTestIOStreams()
	root := newPlugin(streams).command()
	for _, cmd := range root.Commands() {
		if cmd.Short == "" || cmd.Example == "" || !strings.HasSuffix(cmd.Example, strings.TrimSpace(cmd.Example)) {
			t.Errorf("%s: Short %q, Example %q", cmd.Name(), cmd.Short, cmd.Example)
		}
		for line := range strings.SplitSeq(cmd.Long+"\n"+cmd.Example, "\n") {
			if len(line) > 125 {
				t.Errorf("%s: a line of %d characters: %s", cmd.Name(), len(line), line)
			}
		}
	}
	distlock(t, "default", "acquire", "--help").ends(t, 0, "kubectl distlock acquire NAME", "trap", "--no-wait", "--context")
}

func TestWhatIsNotUnderstoodIsAnErrorOfUsage(t *testing.T) {
	for _, line := range []string{"no-such-verb", "list --no-such-flag", "list name", "describe", "acquire", "acquire a b",
		"acquire a --wait soon", "acquire a --wait 1s --no-wait", "acquire a --shared --exclusive", "list -o nonsense", "release a b", "revoke"} {
		distlock(t, "default", strings.Split(line, " ")...).ends(t, exitUsage, "error: ")
	}
}

func TestAnUnreachableClusterIsAFailure(t *testing.T) {
	distlock(t, "default", "--server", "https://127.0.0.1:1", "list").ends(t, exitFailed, "127.0.0.1:1")
}
