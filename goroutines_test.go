package concord

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unguarded are functions that start goroutines without package workers, and why a panic of ours cannot end the server there.
var unguarded = map[string]string{
	"controller/trigger.Run":      "calls one, which package workers guards, for every resource",
	"embedded.abandon":            "closes etcd at the end of the process",
	"embedded.close":              "closes etcd at the end of the process",
	"embedded.cutOff":             "gRPC ends its calls at the end of the process",
	"join.begin":                  "runs package member, whose loops package workers guards",
	"join.depart":                 "waits for others to end",
	"join.Run":                    "is the server: it has ended then",
	"join/internal/local.Serve":   "net/http catches panics of handlers",
	"member.within":               "waits for a timer",
	"migrate/store.newGoroutines": "calls what Each gives it, which package workers guards",
	"server/controllers.runLoops": "waits for the end of a context",
	"server/generic.run":          "waits for the start and the end of the server",
	"stock.serve":                 "net/http catches panics of handlers",
	"stock/election.leadAlone":    "is the process of the controllers, which ends with what it leads",
}

// TestGoroutinesOutliveAPanic: a goroutine of a server in which something of ours can panic is started through package
// workers, which catches it.
func TestGoroutinesOutliveAPanic(t *testing.T) {
	left := maps.Clone(unguarded)
	for _, dir := range serverFolders(t) {
		files, functions := parsed(t, dir)
		for _, file := range files {
			for _, declared := range file.Decls {
				f, ok := declared.(*ast.FuncDecl)
				if !ok {
					continue
				}
				for _, started := range goroutines(f) {
					name := dir + "." + f.Name.Name
					if caught(started, functions) {
						continue
					}
					if unguarded[name] == "" {
						t.Errorf("%s starts a goroutine of which a panic ends the server: use package workers", name)
					}
					delete(left, name)
				}
			}
		}
	}
	for name := range left {
		t.Errorf("%s starts no goroutine without package workers; it need not be listed", name)
	}
}

// serverFolders are the module's folders that are linked into servers and into the controllers beside stock servers.
func serverFolders(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "./server/...", "./embedded", "./stock").Output()
	must(t, err)
	var folders []string
	for path := range strings.FieldsSeq(string(out)) {
		if folder, ok := strings.CutPrefix(path, modulePath+"/"); ok && folder != "workers" {
			folders = append(folders, folder)
		}
	}
	if !slices.Contains(folders, "join") {
		t.Fatalf("go list finds only %v", folders)
	}
	return folders
}

// parsed returns the files of a folder, and the bodies of its functions and methods by name.
func parsed(t *testing.T, dir string) (files []*ast.File, functions map[string][]ast.Node) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must(t, err)
	functions = map[string][]ast.Node{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		must(t, err)
		files = append(files, file)
		for _, declared := range file.Decls {
			if f, ok := declared.(*ast.FuncDecl); ok {
				functions[f.Name.Name] = append(functions[f.Name.Name], f.Body)
			}
		}
	}
	return files, functions
}

// goroutines returns the functions that a function runs in goroutines of their own.
func goroutines(f *ast.FuncDecl) (started []ast.Node) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			started = append(started, n.Call)
		case *ast.CallExpr:
			called, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, _ := called.X.(*ast.Ident)
			switch {
			case called.Sel.Name == "Go" && (of == nil || of.Name != "workers"), called.Sel.Name == "AfterFunc" && of != nil && of.Name == "time":
				started = append(started, n.Args[len(n.Args)-1])
			}
		}
		return true
	})
	return started
}

// caught says whether a function, or one of the folder that it calls, uses package workers, or runs an informer of client-go,
// whose callbacks package listwatch guards.
func caught(started ast.Node, functions map[string][]ast.Node) bool {
	found := uses(started, "workers")
	ast.Inspect(started, func(n ast.Node) bool {
		var name string
		switch n := n.(type) {
		case *ast.SelectorExpr:
			name = n.Sel.Name
			found = found || name == "RunWithContext"
		case *ast.Ident:
			name = n.Name
		}
		found = found || slices.ContainsFunc(functions[name], func(body ast.Node) bool { return uses(body, "workers") })
		return !found
	})
	return found
}

func uses(in ast.Node, packageName string) (found bool) {
	ast.Inspect(in, func(n ast.Node) bool {
		if called, ok := n.(*ast.SelectorExpr); ok {
			of, _ := called.X.(*ast.Ident)
			found = found || of != nil && of.Name == packageName
		}
		return !found
	})
	return found
}
