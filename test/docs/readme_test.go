package docs

import (
	"regexp"
	"strings"
	"testing"
)

// The Go code of the README is that of an Example, and so compiles.
func TestTheGoCodeOfTheREADMEIsThatOfAnExample(t *testing.T) {
	examples := strings.ReplaceAll(read(t, path(t, "lock/example_test.go")), "\n\t\t", "\n")
	examples = regexp.MustCompile(` //nolint:.*`).ReplaceAllString(examples, "")
	blocks := regexp.MustCompile("(?s)\n```go\n(.*?)\n```").FindAllStringSubmatch(read(t, path(t, "README.md")), -1)
	if len(blocks) == 0 {
		t.Fatal("there is none")
	}
	for _, b := range blocks {
		if !strings.Contains(examples, "\n"+b[1]+"\n") {
			t.Errorf("no Example of package lock has\n%s", b[1])
		}
	}
}
