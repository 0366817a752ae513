package concord

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const modulePath = "github.com/concord-dev/concord"

// An arrow says what a folder may import beyond the standard library. The list is the layer rule of
// ARCHITECTURE.md; a folder without an arrow may not exist.
type arrow struct {
	folder string
	// own lists the module's folders that may be imported, with their subfolders.
	own []string
	// external lists import path prefixes that may be imported; nil allows all but forbidden.
	external []string
	// forbidden lists import path prefixes that may not be imported.
	forbidden []string
	// except lists packages that may be imported all the same.
	except []string
	why    string
}

var (
	values    = []string{"k8s.io/apimachinery/pkg/runtime/schema", "k8s.io/apimachinery/pkg/util/version", "k8s.io/apimachinery/pkg/util/sets", "k8s.io/apimachinery/pkg/version"}
	genericly = []string{"k8s.io/apiserver/pkg/server", "k8s.io/apiserver/pkg/endpoints", "k8s.io/apiextensions-apiserver/pkg/apiserver", "k8s.io/kube-aggregator"}
	kube      = []string{"k8s.io/kubernetes"} // only folders under server may import it
)

var arrows = []arrow{
	{folder: "compat", external: values, why: "pure: version planning is decided on values, so that it can be tabulated and tested without a server"},
	{folder: "agree", external: values, why: "pure: agreement is decided on values, so that the simulator and proofs run the same code"},
	{folder: "evolve", own: []string{"agree"}, external: values, why: "pure: when to migrate is decided on values"},
	{folder: "api", own: []string{"agree", "evolve"}, forbidden: append(genericly, "sigs.k8s.io/controller-runtime", "go.etcd.io"), why: "wire types do no I/O"},
	{folder: "connect", own: []string{"compat", "api"}, forbidden: append(append([]string{"k8s.io/apiserver", "go.etcd.io"}, genericly...), kube...), why: "how programs reach a cluster: it is in the plugin, which holds no server"},
	{folder: "status", own: []string{"compat", "agree", "evolve", "api", "stock/observed", "verdict"}, forbidden: append(append([]string{"k8s.io/apiserver", "k8s.io/client-go", "sigs.k8s.io/controller-runtime", "go.etcd.io"}, genericly...), kube...), why: "pure: what operators see is decided on values that were read, so that every screen is a table test"},
	{folder: "verdict", own: []string{"compat", "agree", "evolve", "api"}, forbidden: append(append([]string{"k8s.io/apiserver", "k8s.io/client-go", "sigs.k8s.io/controller-runtime", "go.etcd.io"}, genericly...), kube...), why: "pure: what may be done to a cluster is decided on values, by commands and servers alike"},
	{folder: "dashboard", own: []string{"compat", "agree", "evolve", "api", "connect", "status", "verdict", "listwatch", "workers"}, forbidden: append(append([]string{"k8s.io/apiserver", "go.etcd.io"}, genericly...), kube...), why: "a page that shows what status says: it is in the plugin and in servers, and holds neither"},
	{folder: "workers", own: []string{}, forbidden: append(genericly, "sigs.k8s.io/controller-runtime", "k8s.io/client-go", "go.etcd.io"), why: "what all shells run goroutines by; it knows none"},
	{folder: "build", own: []string{}, external: []string{}, why: "reads what the linker and Go noted in the program: commands say it, and servers tell it"},
	{folder: "grpclimit", own: []string{}, external: []string{}, why: "it has to be initialised before gRPC, and so imports nothing of it"},
	{folder: "listwatch", own: []string{"workers"}, forbidden: append(genericly, "go.etcd.io"), why: "what member and controllers watch through; it knows no kind of object"},
	{folder: "migrate/pace", own: []string{}, external: []string{"k8s.io/utils/clock"}, why: "how both engines give way to clients; it knows neither engine nor server"},
	{folder: "migrate/progress", own: []string{}, external: []string{}, why: "how both engines tell their progress; it knows neither"},
	{folder: "member/hosting", own: []string{"agree", "api", "controller/collect", "fence", "member", "workers"}, forbidden: append(genericly, "go.etcd.io"), why: "a second member beside the one in the own etcd: it reaches both clusters through clients, so that the simulator can run it"},
	{folder: "member", own: []string{"compat", "agree", "evolve", "api", "listwatch", "member", "workers"}, forbidden: append(genericly, "go.etcd.io"), why: "a shell: it reaches objects only through a client, so that the simulator can run it"},
	{folder: "fence", own: []string{"compat", "agree", "evolve", "api", "grpclimit", "workers"}, forbidden: append(genericly, "sigs.k8s.io/controller-runtime"), except: []string{"k8s.io/apiserver/pkg/server/egressselector"}, why: "a shell over storage: it knows no generic server"},
	{folder: "migrate/store", own: []string{"compat", "agree", "evolve", "api", "grpclimit", "migrate/pace", "migrate/progress", "workers"}, forbidden: append(genericly, "sigs.k8s.io/controller-runtime", "k8s.io/client-go"), why: "a shell over stored values"},
	{folder: "stored/storedtest", own: []string{"compat", "agree", "evolve", "api", "testbed/etcdtest"}, forbidden: kube, why: "values for tests, and an etcd to put them into"},
	{folder: "stored", own: []string{"compat", "agree", "evolve", "api", "migrate/store", "verdict", "workers"}, forbidden: append([]string{"k8s.io/apiserver/pkg/server", "k8s.io/apiserver/pkg/endpoints", "sigs.k8s.io/controller-runtime"}, kube...), why: "reads what a cluster remembers of its stored values, and judges it by compat; which keys open them it is told"},
	{folder: "keyring", own: []string{"agree", "evolve", "api", "migrate/store", "member", "stored", "verdict", "workers"}, forbidden: append([]string{"sigs.k8s.io/controller-runtime", "go.etcd.io"}, kube...), why: "encryption at rest for any API server: of member it knows what it tells, and stored is checked with its keys"},
	{folder: "migrate/api", own: []string{"migrate/pace", "migrate/progress", "workers"}, forbidden: append(genericly, "sigs.k8s.io/controller-runtime", "go.etcd.io", "k8s.io/apiserver"), why: "a shell over an API, with nothing of a server, so that it can run against stock Kubernetes"},
	{folder: "controller/throughapi", own: []string{"api", "migrate/api", "migrate/claim"}, forbidden: append(genericly, "go.etcd.io"), why: "has the jobs of one done by the other, for servers and beside them"},
	{folder: "migrate/claim", own: []string{"agree", "evolve", "api", "listwatch", "workers"}, forbidden: append(genericly, "go.etcd.io"), why: "claims migrations for engines that it knows as an interface only"},
	{folder: "controller", own: []string{"compat", "agree", "evolve", "api", "listwatch", "workers"}, forbidden: append(genericly, "go.etcd.io"), why: "controllers stay free of server internals, so that they can run against stock Kubernetes"},
	{folder: "stock/observed", own: []string{"agree", "evolve", "api"}, external: append([]string{"k8s.io/apimachinery/pkg/types", "k8s.io/apimachinery/pkg/apis/meta/v1", "k8s.io/api/coordination/v1", "k8s.io/api/storagemigration/v1"}, values...), why: "pure: what is known of servers that do not report is decided on values"},
	{folder: "stock/election", own: []string{}, forbidden: append(append(genericly, "go.etcd.io", "k8s.io/apiserver", "sigs.k8s.io/controller-runtime"), kube...), why: "elects a process; it knows nothing of its work"},
	{folder: "stock/replicas", own: []string{"agree", "api", "stock/observed", "workers"}, forbidden: append(append(genericly, "go.etcd.io", "k8s.io/apiserver", "sigs.k8s.io/controller-runtime"), kube...), why: "asks servers that report nothing; decides nothing of the answers"},
	{folder: "stock", own: []string{"agree", "evolve", "api", "migrate", "compat", "connect", "controller", "listwatch", "stock", "workers"}, forbidden: append(append(genericly, "go.etcd.io", "k8s.io/apiserver"), kube...), except: []string{"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"}, why: "controllers beside kube-apiservers that stay as they are: they reach nothing but the API"},
	{folder: "migrator", own: []string{"stock"}, forbidden: append(append(genericly, "go.etcd.io", "k8s.io/apiserver"), kube...), why: "a library for operators, which link nothing of a server"},
	{folder: "testbed/linear", own: []string{}, external: []string{"github.com/anishathalye/porcupine"}, why: "judges answers; it knows neither clients nor servers"},
	{folder: "testbed/process", external: []string{"github.com/prometheus/procfs"}, why: "builds and runs programs; it knows none of them but go"},
	{folder: "testbed/etcdtest", own: []string{}, external: []string{"go.etcd.io/etcd/server/v3/embed", "go.uber.org/zap"}, why: "an etcd in the process of a test of any layer: it knows none of them"},
	{folder: "testbed/fakeapi", own: []string{"listwatch/replay"}, forbidden: append(append(genericly, kube...), "go.etcd.io"), why: "an API in a test's memory: it knows no kind of object"},
	{folder: "testbed/load", own: []string{"api"}, forbidden: append(append(genericly, kube...), "go.etcd.io"), why: "clients: when they make requests, and what came of them; it knows no server"},
	{folder: "testbed/ledger", own: []string{"agree", "evolve", "api", "migrate/store"}, forbidden: append(genericly, kube...), why: "what an etcd holds, seen from outside: it knows neither servers nor what has to hold"},
	{folder: "testbed/cluster", own: []string{"agree", "embedded", "pki", "testbed/process"}, forbidden: append(genericly, kube...), why: "starts an etcd and servers, and reaches them from outside: it links an etcd, and no server"},
	{folder: "server/planning", own: []string{"compat"}, why: "plans from Kubernetes' own types and configs; it knows no server of ours"},
	{folder: "gates", own: []string{"compat", "build"}, forbidden: append(append(genericly, "go.etcd.io"), kube...), why: "compat for the libraries' feature gates and definitions: what servers are kept to, and commands explain, without a server"},
	{folder: "join/internal/admit", own: []string{"api", "join/roles"}, why: "admission: it decides by who writes what"},
	{folder: "join/internal/clientload", own: []string{"join/roles", "migrate/pace", "workers"}, why: "measures requests: of migrations it knows what they ask"},
	{folder: "join/internal/engines", own: []string{"api", "controller/throughapi", "fence", "join/internal/convert", "keyring", "migrate"}, why: "does migrations: it knows neither who claims them nor members"},
	{folder: "join/internal/etcdhealth", own: []string{"fence", "member", "workers"}, why: "asks etcd: of the others it knows what they are told"},
	{folder: "join/internal/filters", own: []string{"api", "compat", "join/roles"}, why: "HTTP filters: what they decide on is in the request"},
	{folder: "join/internal/inprocess", own: []string{}, why: "a transport over a handler"},
	{folder: "join/internal/local", own: []string{}, why: "serves groups that it is given"},
	{folder: "join/internal/turns", own: []string{"workers"}, why: "queues requests, of which it knows the priority level and the flow"},
	{folder: "join", own: []string{"compat", "build", "connect", "agree", "evolve", "api", "listwatch", "member", "fence", "migrate", "stored", "keyring", "controller", "dashboard", "verdict", "join", "workers"}, forbidden: kube, why: "the one wiring, a library for all who build on k8s.io/apiserver: it compiles nothing of k8s.io/kubernetes"},
	{folder: "embedded", own: []string{}, forbidden: append(genericly, kube...), why: "an etcd in a process: it knows neither server nor what is stored"},
	{folder: "pki", own: []string{}, forbidden: append(append(genericly, kube...), "go.etcd.io"), why: "certificates in files: it knows no server"},
	{folder: "server/outbound", own: []string{}, forbidden: append(append(genericly, kube...), "go.etcd.io"), why: "connections to Services: it knows no server"},
	{folder: "server", own: []string{"compat", "agree", "evolve", "api", "listwatch", "member", "fence", "migrate/store", "stored", "keyring", "controller", "join", "gates", "embedded", "pki", "server", "workers"}, why: "assembly: the only importer of k8s.io/kubernetes"},
	{folder: "sim/script", own: []string{}, external: []string{}, why: "events are values with a text: they know no cluster, so that whoever writes scripts needs none"},
	{folder: "sim/coroutine", own: []string{}, external: []string{}, why: "runs functions in turns; it knows none"},
	{folder: "sim/object", own: []string{"agree", "api"}, forbidden: append(genericly, kube...), why: "what users store, and a store's steps around a put: it knows an etcd client and no server"},
	{folder: "sim/registry", own: []string{"agree", "api", "sim/etcd", "sim/object"}, forbidden: append(genericly, kube...), why: "the simulated API's storage: it knows an etcd and no server"},
	{folder: "sim/invariant", own: []string{"compat", "agree", "evolve", "api", "migrate/store", "verdict", "sim/etcd", "sim/object", "sim/registry", "sim/script"}, forbidden: append(genericly, kube...), why: "judges writes and what is stored: it knows no shell and no process, so that it cannot err with them"},
	{folder: "sim", own: []string{"compat", "agree", "evolve", "api", "member", "fence", "migrate", "controller", "verdict"}, forbidden: append(genericly, kube...), why: "wires the shells over a simulated etcd and API, in place of a server"},
	{folder: "analysis", own: []string{"compat"}, external: append([]string{"golang.org/x/tools/go/analysis"}, values...), why: "checks of this module's source, whose rules are decided in the pure packages"},
	{folder: "cmd", own: []string{"gates", "build", "embedded", "analysis", "stock", "connect", "dashboard", "status", "verdict", "join", "compat", "agree", "evolve", "api", "member", "fence", "migrate/store", "stored", "keyring", "controller", "server", "demo", "sim"}, forbidden: kube, why: "wires"},
	{folder: "demo", own: []string{"embedded", "pki", "join", "stored", "compat", "agree", "evolve", "api", "migrate/store", "server", "testbed"}, forbidden: kube, why: "drives servers from outside"},
	{folder: "bench", own: []string{"embedded", "pki", "stored", "compat", "agree", "evolve", "api", "member", "fence", "migrate/store", "controller", "server", "demo", "testbed"}, forbidden: kube, why: "measures what is there"},
	{folder: "conformance", own: []string{"pki", "testbed"}, forbidden: kube, why: "runs Kubernetes' suite as a program against servers as programs; the suite is a module of its own"},
	{folder: "examples", own: []string{"join", "migrator"}, forbidden: kube, why: "what others write with the library: it uses nothing else of this module"},
	{folder: "e2e", own: []string{"embedded", "pki", "stock", "join", "api", "agree", "server", "migrate/store", "stored", "keyring", "demo", "testbed"}, forbidden: kube, why: "uses servers as their users do"},
}

type listed struct {
	ImportPath string
	Imports    []string
	Doc        string
	GoFiles    []string
	Standard   bool
}

func TestArrows(t *testing.T) {
	for _, p := range packages(t) {
		folder := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, modulePath), "/")
		if folder == "" {
			continue
		}
		i := slices.IndexFunc(arrows, func(a arrow) bool { return under(folder, a.folder) })
		if i < 0 {
			t.Errorf("%s: no layer; add it to the arrows with a reason, or put it elsewhere", folder)
			continue
		}
		for _, imported := range p.Imports {
			if why := arrows[i].refuses(imported); why != "" {
				t.Errorf("%s imports %s: %s (%s: %s)", folder, imported, why, arrows[i].folder, arrows[i].why)
			}
		}
	}
}

// staging are what an API server on Kubernetes' staging modules has anyhow: these modules, some of the libraries that they
// use, and etcd's client. sigs.k8s.io adds controller-runtime (docs/library.md).
var staging = []string{"k8s.io", "sigs.k8s.io", "go.etcd.io/etcd/api", "go.etcd.io/etcd/client",
	"github.com/emicklei/go-restful", "github.com/go-logr/logr", "github.com/mitchellh/go-wordwrap", "github.com/prometheus", "github.com/spf13/pflag",
	"go.opentelemetry.io", "go.uber.org/zap", "golang.org/x/sync", "google.golang.org/grpc", "google.golang.org/protobuf"}

// TestLibraryOnStaging: join, and the folders of this module that are compiled with it, import nothing but the standard
// library and staging.
func TestLibraryOnStaging(t *testing.T) {
	imports, compiled := map[string][]string{}, []string{modulePath + "/join"}
	for _, p := range packages(t) {
		imports[p.ImportPath] = p.Imports
	}
	for i := 0; i < len(compiled); i++ { // grows
		for _, imported := range imports[compiled[i]] {
			switch {
			case under(imported, modulePath):
				if !slices.Contains(compiled, imported) {
					compiled = append(compiled, imported)
				}
			case strings.Contains(strings.Split(imported, "/")[0], ".") && (under(imported, kube[0]) || !slices.ContainsFunc(staging, func(s string) bool { return under(imported, s) })):
				t.Errorf("%s, which is compiled with join, imports %s", compiled[i], imported)
			}
		}
	}
	if len(compiled) < 20 {
		t.Errorf("only %v are compiled with join", compiled)
	}
}

func (a arrow) refuses(imported string) string {
	if own, ok := strings.CutPrefix(imported, modulePath+"/"); ok {
		if under(own, a.folder) && a.folder != "controller" || slices.ContainsFunc(a.own, func(o string) bool { return under(own, o) }) {
			return ""
		}
		return "no arrow leads there"
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return ""
	}
	if a.external != nil && !slices.ContainsFunc(a.external, func(e string) bool { return under(imported, e) }) {
		return "only " + strings.Join(a.external, ", ")
	}
	if slices.Contains(a.except, imported) {
		return ""
	}
	if slices.ContainsFunc(a.forbidden, func(f string) bool { return under(imported, f) }) {
		return "forbidden"
	}
	// Only folders under server import Kubernetes itself, and only folders whose arrow names server
	// import server. So join, all that it imports, and the commands do not depend on Kubernetes.
	if a.folder != "server" && a.folder != "server/planning" && slices.ContainsFunc(kube, func(f string) bool { return under(imported, f) }) {
		return "only server may"
	}
	return ""
}

func under(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

// TestServerIsAssembly limits the lines of the folders under server: they only put Kubernetes and join
// together.
func TestServerIsAssembly(t *testing.T) {
	lines := 0
	for _, p := range packages(t) {
		if !under(strings.TrimPrefix(p.ImportPath, modulePath+"/"), "server") {
			continue
		}
		for _, file := range p.GoFiles {
			content, err := os.ReadFile(filepath.Join(strings.TrimPrefix(p.ImportPath, modulePath+"/"), file))
			must(t, err)
			lines += bytes.Count(content, []byte("\n"))
		}
	}
	if lines == 0 || lines > 3000 {
		t.Errorf("server has %d lines, and may have 3000", lines)
	}
}

// TestPackageDocs asserts that every package says what it is.
func TestPackageDocs(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" && len(p.GoFiles) > 0 {
			t.Errorf("%s has no package doc comment", p.ImportPath)
		}
	}
}

// TestArchitectureLinks: ARCHITECTURE.md, which people begin with, links to every page and stays short.
func TestArchitectureLinks(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	must(t, err)
	if words := len(strings.Fields(string(text))); words > 1500 {
		t.Errorf("ARCHITECTURE.md has %d words, and may have 1500", words)
	}
	var pages []string
	for _, pattern := range []string{"docs/*.md", "docs/reference/*.md", "docs/runbooks/README.md"} {
		found, err := filepath.Glob(pattern)
		must(t, err)
		pages = append(pages, found...)
	}
	if len(pages) < 20 {
		t.Fatalf("found only %v", pages)
	}
	for _, page := range pages {
		if !strings.Contains(string(text), "]("+page+")") {
			t.Errorf("ARCHITECTURE.md has no link to %s", page)
		}
	}
}

// TestNoJunkDrawers forbids folders with names that say nothing, such as util.
func TestNoJunkDrawers(t *testing.T) {
	for _, p := range packages(t) {
		switch base := filepath.Base(p.ImportPath); base {
		case "util", "utils", "common", "helpers", "misc", "pkg", "hack":
			t.Errorf("%s: a helper earns a named package or stays with its only user", p.ImportPath)
		}
	}
}

func packages(t *testing.T) []listed {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,Doc,GoFiles,Standard", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var p listed
		must(t, decoder.Decode(&p))
		all = append(all, p)
	}
	if len(all) < len(arrows)/2 {
		t.Fatalf("go list found only %d packages", len(all))
	}
	return all
}
