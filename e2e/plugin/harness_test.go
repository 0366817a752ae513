package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/beside/itself"
	"github.com/concord-dev/concord/e2e/cluster"
)

func TestMain(m *testing.M) { itself.Main(m) }

// buildPlugin builds kubectl concord and returns its path.
func buildPlugin(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "kubectl-concord")
	cluster.Compile(t, "-o", program, "github.com/concord-dev/concord/cmd/kubectl-concord")
	return program
}

// plugin is kubectl concord with the kubeconfig of an administrator.
type plugin struct {
	t                   *testing.T
	program, kubeconfig string
}

func newPlugin(t *testing.T, s *beside.APIServer) *plugin {
	t.Helper()
	kubeconfig, err := s.Access(beside.AdminToken).Kubeconfig("plugin")
	must(t, err)
	return &plugin{t: t, program: buildPlugin(t), kubeconfig: kubeconfig}
}

// oneLine are arguments of commands that print each thing in a line of its own, however long
// its names are; the text of all other commands is at most 80 columns wide.
var oneLine = []string{"json", "migrate", "throttle", "pause", "resume", "--yes"}

// exec runs a command, and returns its stdout, its stderr and its exit code.
func (p *plugin) exec(args ...string) (out, complaints string, code int) {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(p.t.Context(), p.program, args...)
	cmd.Env = []string{"KUBECONFIG=" + p.kubeconfig}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		p.t.Error(err)
		return "", "", -1
	}
	free := slices.ContainsFunc(args, func(arg string) bool { return slices.Contains(oneLine, arg) })
	for line := range strings.Lines(stdout.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 && !free {
			p.t.Errorf("%s: a line of %d columns: %s", strings.Join(args, " "), n, line)
		}
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// run runs a command that has to end with a code.
func (p *plugin) run(code int, args ...string) said {
	p.t.Helper()
	out, complaints, got := p.exec(args...)
	if got != code {
		p.t.Fatalf("%s: exit code %d, not %d\n%s%s", strings.Join(args, " "), got, code, out, complaints)
	}
	return saying(p.t, args, out)
}

// refused runs a command that has to print one line on stderr, nothing else, and end with 1.
func (p *plugin) refused(args ...string) said {
	p.t.Helper()
	out, complaints, code := p.exec(args...)
	if code != 1 || out != "" || strings.Count(complaints, "\n") != 1 {
		p.t.Errorf("%s: exit code %d, not 1 with one line\n%s%s", strings.Join(args, " "), code, out, complaints)
	}
	return saying(p.t, args, complaints)
}

// read reads the JSON that a command prints.
func (p *plugin) read(code int, into any, args ...string) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(p.run(code, args...).text), into); err != nil {
		p.t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
}

// await runs a command until it ends with 0 and its output matches.
func (p *plugin) await(pattern string, args ...string) {
	p.t.Helper()
	p.awaitCode(0, pattern, args...)
}

// awaitCode is await for another exit code.
func (p *plugin) awaitCode(want int, pattern string, args ...string) {
	p.t.Helper()
	match := regexp.MustCompile(pattern)
	beside.Eventually(p.t, beside.Patience, strings.Join(args, " "), func(context.Context) error {
		out, complaints, code := p.exec(args...)
		if code != want || !match.MatchString(saying(p.t, args, out).text) {
			return fmt.Errorf("exit code %d, and no %q in\n%s%s", code, pattern, out, complaints)
		}
		return nil
	})
}

// said is the output of a command. Lines break anywhere, so all white space is replaced by single blanks.
type said struct {
	t             *testing.T
	command, text string
}

func saying(t *testing.T, args []string, text string) said {
	return said{t, strings.Join(args, " "), strings.Join(strings.Fields(text), " ")}
}

func (s said) has(part string) said {
	s.t.Helper()
	if !strings.Contains(s.text, part) {
		s.t.Errorf("%s: there is no %q in: %s", s.command, part, s.text)
	}
	return s
}

func (s said) hasNo(part string) said {
	s.t.Helper()
	if strings.Contains(s.text, part) {
		s.t.Errorf("%s: there is %q in: %s", s.command, part, s.text)
	}
	return s
}

// must is for steps without which a test cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
