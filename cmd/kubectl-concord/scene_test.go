package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/api/storageversion"
	e2e "github.com/concord-dev/concord/e2e/cluster"
)

// patience is how long a test waits for something expected, on a busy machine.
const patience = 5 * time.Minute

// TestScene runs testdata/scene against three real servers, the third of which can be killed and
// keeps its Lease for a while. Beside testscript's own commands there are
//
//	apply <file>            create a CustomResourceDefinition, and wait until it is served
//	fill <resource> <n>     create objects
//	flip <crd> <version>    change the storage version of a CustomResourceDefinition
//	put <key> <value>, del <key>  write and delete in etcd
//	remove <resource>       run the command that "why" prints for removing a damaged object
//	crash three, bury three  kill a server with SIGKILL; delete its Lease
//	code <n> <command> <argument>...  run a command, which must end with this exit code
//	narrow                  check that no line of the last stdout has more than 80 columns
//	await <regexp> <command> <argument>...  run a command again and again until it prints a match
//	watch <regexp> <command> <argument>...  run a command until it has printed a match, and interrupt it
//	page <regexp>...        start the dashboard, whose page must have a match of each
//	screen <file>           write the last stdout to a file, with names for the parts that differ
//	                        between runs, and check that it is narrow
//	lines <file>            the same for output with one event a line, for scripts, however long;
//	                        lines that tell the progress of a migration are left out
func TestScene(t *testing.T) {
	c := e2e.New(t)
	s := &scene{cluster: c, servers: map[string]*e2e.Server{}}
	slowly := "--migration-max-objects-per-second=5" // so that commands find a migration of 400 objects under way
	for _, server := range c.Start(e2e.Options{Args: slowly}, "one", "two") {
		s.servers[server.Name] = server
	}
	s.servers["three"] = c.Start(e2e.Options{Args: slowly + " --identity-lease-duration=120s"}, "three")[0]
	testscript.Run(t, testscript.Params{
		Dir: "testdata/scene", RequireExplicitExec: true, UpdateScripts: os.Getenv("UPDATE_SCREENS") != "",
		Setup: func(env *testscript.Env) error {
			env.Setenv("KUBECONFIG", s.servers["one"].Kubeconfig())
			env.Setenv("ETCD", c.Endpoint)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"apply": s.apply, "fill": s.fill, "flip": s.flip, "put": s.put, "del": s.del, "remove": s.remove, "crash": s.crash, "bury": s.bury, "await": await, "watch": watch, "page": page, "screen": screen, "lines": lines,
			"code": code, "narrow": narrow,
		},
	})
}

type scene struct {
	cluster *e2e.Cluster
	servers map[string]*e2e.Server
}

func (s *scene) objects() client.WithWatch { return s.servers["one"].Objects() }

// until calls do every 200 ms until it succeeds, and ends the script if it does not within
// patience.
func until(ts *testscript.TestScript, what string, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := do(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			ts.Fatalf("%s: %v", what, err)
		case <-ticker.C:
		}
	}
}

func (s *scene) apply(ts *testscript.TestScript, _ bool, args []string) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	ts.Check(yaml.Unmarshal([]byte(ts.ReadFile(args[0])), crd))
	ts.Check(s.objects().Create(context.Background(), crd))
	until(ts, crd.Name+" is served", func(ctx context.Context) error {
		gvr := schema.GroupVersionResource{Group: crd.Spec.Group, Version: "v1", Resource: crd.Spec.Names.Plural}
		for _, server := range s.servers {
			if _, err := server.Dynamic().Resource(gvr).List(ctx, metav1.ListOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *scene) fill(ts *testscript.TestScript, _ bool, args []string) {
	gr := schema.ParseGroupResource(args[0])
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	kind := strings.ToUpper(gr.Resource[:1]) + strings.TrimSuffix(gr.Resource[1:], "s")
	api := s.servers["one"].Dynamic().Resource(gr.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
	for i := range n {
		obj := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": gr.Group + "/v1", "kind": kind, "metadata": map[string]any{"name": fmt.Sprintf("%s-%03d", gr.Resource, i)},
		}}
		_, err := api.Create(context.Background(), obj, metav1.CreateOptions{})
		ts.Check(err)
	}
}

func (s *scene) flip(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(e2e.ChangeDefinition(context.Background(), s.objects(), args[0], e2e.Store(args[1])))
}

func (s *scene) put(ts *testscript.TestScript, _ bool, args []string) {
	_, err := s.cluster.Raw.Put(context.Background(), args[0], args[1])
	ts.Check(err)
}

func (s *scene) del(ts *testscript.TestScript, _ bool, args []string) {
	_, err := s.cluster.Raw.Delete(context.Background(), args[0])
	ts.Check(err)
}

// remove runs the command, filled in, with kubectl; where there is no kubectl, it deletes the key in etcd.
func (s *scene) remove(ts *testscript.TestScript, _ bool, args []string) {
	var exit *exec.ExitError
	if err := ts.Exec("kubectl-concord", "why", args[0]); err != nil && !errors.As(err, &exit) {
		ts.Check(err)
	}
	command := regexp.MustCompile(`(?s)echo '.*?--raw.*?'/.*?'\n`).FindString(ts.ReadFile("stdout"))
	if command == "" {
		ts.Fatalf("why names no command:\n%s", ts.ReadFile("stdout"))
	}
	if _, err := exec.LookPath("kubectl"); err != nil {
		s.del(ts, false, []string{"/registry/example.com/widgets/default/broken"})
		return
	}
	command = strings.NewReplacer("VERSION", "v1", "NAMESPACE", "default", "NAME", "broken").Replace(command)
	until(ts, command, func(context.Context) error { return ts.Exec("sh", "-c", command) })
}

func (s *scene) crash(ts *testscript.TestScript, _ bool, args []string) {
	s.servers[args[0]].Kill()
}

func (s *scene) bury(ts *testscript.TestScript, _ bool, args []string) {
	api := s.servers["one"].Kube().CoordinationV1().Leases(storageversion.IdentityNamespace)
	for _, id := range s.servers[args[0]].IDs() {
		ts.Check(api.Delete(context.Background(), string(id), metav1.DeleteOptions{}))
	}
}

func await(ts *testscript.TestScript, _ bool, args []string) {
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	until(ts, strings.Join(args, " "), func(context.Context) error {
		err := ts.Exec(args[1], args[2:]...)
		if out := ts.ReadFile("stdout"); !want.MatchString(out) {
			return fmt.Errorf("%v, and it printed\n%s%s", err, out, ts.ReadFile("stderr"))
		}
		return nil
	})
}

func code(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%s: %v", strings.Join(args[1:], " "), err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("%s ended with %d, not %d\n%s%s", strings.Join(args[1:], " "), got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

func narrow(ts *testscript.TestScript, _ bool, _ []string) {
	for line := range strings.Lines(ts.ReadFile("stdout")) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > plainWidth {
			ts.Fatalf("a line of %d columns: %s", n, line)
		}
	}
}

// started runs a program that is on the script's PATH, until it is interrupted.
func started(ctx context.Context, ts *testscript.TestScript, name string, args ...string) (*exec.Cmd, *bufio.Reader) {
	var program string
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if file := filepath.Join(dir, name); program == "" {
			if _, err := os.Stat(file); err == nil {
				program = file
			}
		}
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "KUBECONFIG=" + ts.Getenv("KUBECONFIG")}
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	return cmd, bufio.NewReader(out)
}

// watch ends the script with an error if the program prints a line of more than 80 columns, or ends
// with an error when it is interrupted.
func watch(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	want, err := regexp.Compile(args[0])
	ts.Check(err)
	cmd, out := started(ctx, ts, args[1], args[2:]...)
	var seen strings.Builder
	for !want.MatchString(seen.String()) {
		line, err := out.ReadString('\n')
		seen.WriteString(line)
		if err != nil || utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > plainWidth {
			ts.Fatalf("%v, having printed\n%s", err, seen.String())
		}
	}
	ts.Check(cmd.Process.Signal(os.Interrupt))
	ts.Check(cmd.Wait())
}

// page starts the dashboard and reads the first events of its stream.
func page(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd, out := started(ctx, ts, "kubectl-concord", "dashboard")
	url, err := out.ReadString('\n')
	ts.Check(err)
	if text, err := out.ReadString('\n'); err != nil || !regexp.MustCompile(`^shows https://\S+ until you press Ctrl-C\.\n$`).MatchString(text) {
		ts.Fatalf("the dashboard says %q, %v", text, err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSpace(url)+"page/stream", http.NoBody)
	ts.Check(err)
	answer, err := http.DefaultClient.Do(r)
	ts.Check(err)
	var seen strings.Builder
	events := bufio.NewReader(answer.Body)
	for !strings.Contains(seen.String(), "event: whole") {
		line, err := events.ReadString('\n')
		ts.Check(err)
		seen.WriteString(line)
	}
	ts.Check(answer.Body.Close())
	for _, want := range args {
		if !regexp.MustCompile(want).MatchString(seen.String()) {
			ts.Fatalf("the dashboard tells nothing like %q: %s", want, seen.String())
		}
	}
	ts.Check(cmd.Process.Signal(os.Interrupt))
	ts.Check(cmd.Wait())
}

var (
	identity = regexp.MustCompile(`apiserver-[0-9a-f]{16}`)
	// varying matches the parts that differ between runs: ages, rates, counts of resources and the
	// share of objects at which a migration was paused.
	varying = regexp.MustCompile(`(Lease|dead|unrenewed) for [0-9smh]+|of [0-9]+ resources, [0-9]+ are agreed on and [0-9]+|[0-9]+ of [0-9]+ resources are safe|of [0-9]+ resources|[0-9]+ %|\[[#.]{30}\]|[0-9]+ bytes|revision [0-9]+|, in [0-9]+m?s`)
	// ended matches a line of history from its time on; spans matches the space between its
	// columns.
	ended = regexp.MustCompile(`(?m)^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8} .*$`)
	spans = regexp.MustCompile(`  +`)
	took  = regexp.MustCompile(` <?[0-9]+[smh]\S* `)
	// progress matches lines that tell the progress of a migration; their number differs between
	// runs.
	progress = regexp.MustCompile(`(?m)^(\S+: )?(waiting|running|[0-9]+ of [0-9]+ objects).*\n`)
	// made matches the name of a migration.
	made   = regexp.MustCompile(`migration \S+`)
	digits = regexp.MustCompile(`[0-9]+[smh]?([0-9]+s)?`)
	bar    = regexp.MustCompile(`#`)
)

// pausedAt matches the number of objects (of 400) at which the migration was paused.
var pausedAt = regexp.MustCompile(`[0-9]+(\s+of 400)|(example.com/v[12]  )[0-9]+`)

// screen replaces the servers' names by names of the same length, numbered in the order of their
// appearance, so that columns stay, and writes N for numbers that differ between runs.
func screen(ts *testscript.TestScript, _ bool, args []string) {
	narrow(ts, false, nil)
	lines(ts, false, args)
}

func lines(ts *testscript.TestScript, _ bool, args []string) {
	text, n := progress.ReplaceAllString(ts.ReadFile("stdout"), ""), map[string]string{}
	text = identity.ReplaceAllStringFunc(text, func(id string) string {
		if n[id] == "" {
			n[id] = fmt.Sprintf("apiserver-%016d", len(n)+1)
		}
		return n[id]
	})
	text = varying.ReplaceAllStringFunc(text, func(v string) string {
		return strings.TrimLeft(bar.ReplaceAllString(digits.ReplaceAllString(v, "N"), "."), " ")
	})
	text = ended.ReplaceAllStringFunc(text, func(line string) string {
		return "ENDED" + took.ReplaceAllString(spans.ReplaceAllString(line[len(time.DateTime):], " "), " TOOK ")
	})
	text = made.ReplaceAllString(text, "migration NAME")
	if strings.Contains(text, "of 400") {
		text = pausedAt.ReplaceAllString(text, "${2}N${1}")
	}
	// The column of a share is as wide as its number, so its spaces are made one.
	text = regexp.MustCompile(` +N %`).ReplaceAllString(text, " N %")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}
