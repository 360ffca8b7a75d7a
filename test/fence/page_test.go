package fence

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/distlock-dev/distlock/fence"
	"github.com/distlock-dev/distlock/hack/assets"
)

// page is the text of docs/fencing.md.
func page(t *testing.T) string {
	t.Helper()
	tree, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(tree, "docs", "fencing.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestThePageHasTheDefinitionsOfTheTable(t *testing.T) {
	text := strings.Join(strings.Fields(page(t)), " ")
	for _, d := range []fence.Dialect{fence.PostgreSQL, fence.MySQL, fence.SQLite} {
		if ddl := strings.Join(strings.Fields(d.DDL()), " "); ddl == "" || !strings.Contains(text, ddl) {
			t.Errorf("docs/fencing.md lacks %s", ddl)
		}
	}
}

// theScriptOfThePage runs the script called name, which calls a client of the
// database, the program, with various tokens; the one before is 7.
func theScriptOfThePage(t *testing.T, s server, d *database, name, program string, environment ...string) {
	t.Helper()
	found := regexp.MustCompile("(?s)<!-- " + name + ": run by test/fence -->\n```sh\n(.*?)```").FindStringSubmatch(page(t))
	if found == nil {
		t.Fatalf("docs/fencing.md has no script %q", name)
	}
	if !s.has(program) {
		t.Skipf("SKIPPED: no /%s beside the server", program)
	}
	d.exec(t, "CREATE TABLE ledger (id BIGINT PRIMARY KEY, total BIGINT NOT NULL, token BIGINT NOT NULL)")
	d.exec(t, "INSERT INTO ledger VALUES (1, 0, 7)")
	d.passes(t, "ledger", 7)
	folder := filepath.Dir(s.glob(program))
	environment = append(s.command(t.Context(), program).Env, environment...)
	for _, row := range []struct {
		token  string
		writes bool
		total  int64
	}{{"7", true, 100}, {"6", false, 100}, {"8", true, 200}, {"7", false, 200}, {"", false, 200}} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", found[1])
		cmd.Env = slices.Concat(environment, []string{"DISTLOCK_FENCING_TOKEN=" + row.token, "PATH=" + folder + ":" + os.Getenv("PATH")})
		out, err := cmd.CombinedOutput()
		if (err == nil) != row.writes {
			t.Errorf("token %q: %v\n%s", row.token, err, out)
		}
		var total int64
		if err := d.QueryRowContext(t.Context(), "SELECT total FROM ledger").Scan(&total); err != nil || total != row.total {
			t.Errorf("after token %q the total is %d, %v; want %d", row.token, total, err, row.total)
		}
	}
}
