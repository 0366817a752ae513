package concord

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// TestModuleFile: go.mod has no lines by which "go install" from a module proxy refuses a module. TestGoInstall, which
// is slow, sees whether it works.
func TestModuleFile(t *testing.T) {
	content, err := os.ReadFile("go.mod")
	must(t, err)
	file, err := modfile.Parse("go.mod", content, nil)
	must(t, err)
	for _, line := range file.Replace {
		t.Errorf("go.mod:%d: %s is replaced", line.Syntax.Start.Line, line.Old)
	}
	for _, line := range file.Exclude {
		t.Errorf("go.mod:%d: %s is excluded", line.Syntax.Start.Line, line.Mod)
	}
}

var slow = flag.Bool("slow", false, "also install the module from a file proxy, which compiles all of it")

// TestGoInstall installs the command with "go install" from a module proxy, as users do. That works
// only if go.mod has no replace lines, and names released versions of all of Kubernetes' staging
// modules.
func TestGoInstall(t *testing.T) {
	if !*slow {
		return
	}
	const version = "v0.0.1-ci"
	proxy, bin := t.TempDir(), t.TempDir()
	serve := filepath.Join(proxy, filepath.FromSlash(modulePath), "@v")
	must(t, os.MkdirAll(serve, 0o755))
	info, err := json.Marshal(map[string]any{"Version": version, "Time": time.Now().UTC()})
	must(t, err)
	mod, err := os.ReadFile("go.mod")
	must(t, err)
	for name, content := range map[string][]byte{version + ".info": info, version + ".mod": mod, "list": []byte(version + "\n")} {
		must(t, os.WriteFile(filepath.Join(serve, name), content, 0o644))
	}
	archive, err := os.Create(filepath.Join(serve, version+".zip"))
	must(t, err)
	must(t, zip.CreateFromDir(archive, module.Version{Path: modulePath, Version: version}, "."))
	must(t, archive.Close())
	usual, err := exec.Command("go", "env", "GOPROXY").Output()
	must(t, err)
	cmd := exec.Command("go", "install", modulePath+"/cmd/concord@"+version)
	cmd.Dir = bin
	cmd.Env = append(os.Environ(), "GOBIN="+bin, "GONOSUMDB="+modulePath, fmt.Sprintf("GOPROXY=file://%s,%s", filepath.ToSlash(proxy), strings.TrimSpace(string(usual))))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go install: %v\n%s", err, out)
	}
	out, err := exec.Command(filepath.Join(bin, "concord"), "version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), version) {
		t.Errorf("concord version: %v\n%s", err, out)
	}
}
