package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/concord-dev/concord/testbed/process"
)

// programs is the directory of the programs built from this module and from the folder suite.
type programs string

func (p programs) path(name string) string { return filepath.Join(string(p), name) }

// sourceFolder is where this program's source is.
func sourceFolder(ctx context.Context) (string, error) {
	dir, err := process.Go(ctx, "list", "-f", "{{.Dir}}", "github.com/concord-dev/concord/conformance")
	if err != nil {
		return "", fmt.Errorf("find the source of conformance (run this inside its module): %w", err)
	}
	return dir, nil
}

// build builds all programs. Without changes since the last time it takes seconds.
func build(ctx context.Context, source string, o options, stderr io.Writer) (programs, error) {
	bin, suite := filepath.Join(o.dir, "bin"), filepath.Join(source, "suite")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		return "", err
	}
	const kubernetes = "k8s.io/kubernetes"
	module := releases["1.37"].modfile
	steps := []struct {
		modfile string
		args    []string
	}{
		{o.release.modfile, []string{"test", "-c", "-o", filepath.Join(bin, "e2e.test"), "."}},
		{o.release.modfile, []string{"build", "-o", bin + "/", kubernetes + "/cmd/kubectl", "github.com/onsi/ginkgo/v2/ginkgo"}},
		{module, []string{"build", "-o", bin + "/", kubernetes + "/cmd/kube-apiserver", kubernetes + "/cmd/kube-controller-manager"}},
	}
	for _, step := range steps {
		// Programs of Kubernetes know their release by this alone.
		version, err := process.Go(ctx, "list", "-C="+suite, "-modfile="+step.modfile, "-m", "-f", "{{.Version}}", kubernetes)
		if err != nil {
			return "", err
		}
		args := slices.Insert(step.args, 1, "-C="+suite, "-modfile="+step.modfile, "-ldflags=-X k8s.io/component-base/version.gitVersion="+version)
		fmt.Fprintln(stderr, "go", strings.Join(args, " "))
		if _, err := process.Go(ctx, args...); err != nil {
			return "", err
		}
	}
	_, err := process.Go(ctx, "build", "-C="+source, "-o", filepath.Join(bin, "concord"), "../cmd/concord")
	return programs(bin), err
}

const (
	reportName = "report.json"
	// suiteTimeout is far above the time that the suite takes.
	suiteTimeout = 3 * time.Hour
)

// specs lists the names of all specs that the suite has.
func (p programs) specs(ctx context.Context, dir string, stderr io.Writer) ([]string, error) {
	report := filepath.Join(dir, "specs.json")
	cmd := exec.CommandContext(ctx, p.path("e2e.test"), "--ginkgo.dry-run", "--ginkgo.silence-skips", "--ginkgo.json-report="+report, "--provider=skeleton", "--ginkgo.focus=.")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		_, _ = stderr.Write(out)
		return nil, fmt.Errorf("list the suite's specs: %w", err)
	}
	listed, err := readReport(report)
	if err != nil {
		return nil, err
	}
	return listed.names(), nil
}

// suite runs the suite against a control plane. Failed specs are no error; judge evaluates them.
func (p programs) suite(ctx context.Context, c *controlPlane, procs int, only string, stderr io.Writer) error {
	report := c.Path(reportName)
	if err := os.Remove(report); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	args := []string{"--procs=" + strconv.Itoa(procs), "--timeout=" + suiteTimeout.String(), "--no-color", "--silence-skips",
		// Other programs' load makes single specs time out.
		"--flake-attempts=2",
		// A process of the suite that ends before it reports leaves its stack in the log.
		"--output-interceptor-mode=none",
		"--output-dir=" + c.Dir, "--json-report=" + reportName, p.path("e2e.test"), "--",
		"--kubeconfig=" + c.server.Kubeconfig(), "--kubectl-path=" + p.path("kubectl"), "--only=" + only,
		"--provider=skeleton", "--num-nodes=1", "--allowed-not-ready-nodes=-1", "--minStartupPods=-1", "--dump-logs-on-failure=false", "--e2e-output-dir=" + c.Dir,
	}
	cmd := exec.CommandContext(ctx, p.path("ginkgo"), args...)
	cmd.Dir = c.Dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	log, err := os.Create(c.Path("suite.log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	began := time.Now()
	err = cmd.Run()
	fmt.Fprintf(stderr, "%s: the suite took %s\n", c.name, time.Since(began).Round(time.Second))
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		if _, missing := os.Stat(report); missing == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("the suite did not run (its output is in %s): %w", log.Name(), err)
	}
	return nil
}
