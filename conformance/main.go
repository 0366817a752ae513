package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/concord-dev/concord/testbed/cluster"
)

// The control planes, in the order in which they are run.
const (
	stock  = "stock"          // Kubernetes' own kube-apiserver and kube-controller-manager
	dropIn = "kube-apiserver" // concord kube-apiserver beside the same kube-controller-manager
	alone  = "server"         // concord server, which has its controllers in the process
)

var planes = []string{stock, dropIn, alone}

// quickFocus matches specs of the features that Concord touches most: lists and watches, custom
// resources and their schemas, server-side apply, policies, namespaces, service accounts and their
// tokens.
const quickFocus = `WatchList|Watchers|CustomResource(Validation|Definition|FieldValidation)|ServerSideApply|FieldValidation|(Validating|Mutating)AdmissionPolicy|Namespaces|ServiceAccounts`

// errRule is returned when something that passes on stock does not pass on ours.
var errRule = errors.New("the rule is broken")

func main() {
	cluster.ServeEtcd()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// options are the command line options.
type options struct {
	release release
	// run are the planes that are started; others are judged by earlier reports.
	run []string
	// dir keeps programs, reports, logs and data.
	dir string
	// focus is the expression that the names of the specs that are run match.
	focus *regexp.Regexp
	// procs is how many specs run at once.
	procs int
}

func parse(args []string, stderr io.Writer) (options, error) {
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := options{}
	name := flags.String("release", "1.37", "release of Kubernetes whose suite is run; an older one than the servers' is emulated by them")
	list := flags.String("planes", strings.Join(planes, ","), "control planes that are run")
	quick := flags.Bool("quick", false, "only the specs next to what Concord changes")
	flags.StringVar(&o.dir, "dir", filepath.Join(os.TempDir(), "concord-conformance"), "directory of programs, reports and logs")
	focus := flags.String("focus", "", "only the specs whose names match this regular expression")
	flags.IntVar(&o.procs, "procs", 4, "specs that run at once")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("no arguments are taken, only flags: %s", flags.Arg(0))
	}
	if *quick {
		if *focus != "" {
			return options{}, errors.New("-quick and -focus exclude each other")
		}
		*focus = quickFocus
	}
	for plane := range strings.FieldsFuncSeq(*list, func(r rune) bool { return r == ',' }) {
		if !slices.Contains(planes, plane) {
			return options{}, fmt.Errorf("there is no plane %q, only %s", plane, strings.Join(planes, ", "))
		}
		o.run = append(o.run, plane)
	}
	var err error
	if o.focus, err = regexp.Compile(*focus); err != nil {
		return options{}, err
	}
	if o.release, err = releaseOf(*name); err != nil {
		return options{}, err
	}
	o.dir, err = filepath.Abs(filepath.Join(o.dir, o.release.name))
	return o, err
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	source, err := sourceFolder(ctx)
	if err != nil {
		return err
	}
	skipped, err := readSkipped(filepath.Join(source, o.release.skipFile()))
	if err != nil {
		return err
	}
	p, err := build(ctx, source, o, stderr)
	if err != nil {
		return err
	}
	all, err := p.specs(ctx, o.dir, stderr)
	if err != nil {
		return err
	}
	if err := skipped.check(all); err != nil {
		return fmt.Errorf("%s: %w", o.release.skipFile(), err)
	}
	chosen := slices.DeleteFunc(all, func(name string) bool { return !o.focus.MatchString(name) })
	var failed error
	for _, plane := range o.run {
		if err := p.test(ctx, plane, o, skipped.rest(chosen, plane), stderr); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", plane, err))
		}
		if ctx.Err() != nil {
			return failed
		}
	}
	results, err := readReports(o)
	return errors.Join(failed, err, judge(chosen, skipped, results).publish(stdout, o.dir))
}

// readReports reads the reports of today's runs, and the earlier reports of the other control planes.
func readReports(o options) (map[string]outcomes, error) {
	results, failed := map[string]outcomes{}, error(nil)
	for _, plane := range planes {
		result, err := readReport(filepath.Join(o.dir, plane, reportName))
		switch {
		case err == nil:
			results[plane] = result
		case errors.Is(err, os.ErrNotExist) && !slices.Contains(o.run, plane):
		default:
			failed = errors.Join(failed, fmt.Errorf("%s: %w", plane, err))
		}
	}
	return results, failed
}
