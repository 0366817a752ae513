package evolve

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/concord-dev/concord/agree"
)

// TestStories runs the stories in testdata. Commands:
//
//	report a=batch/v1 b=batch/v1  servers report; no server: all are gone
//	collect                       the StorageVersion without reports is deleted
//	look                          the trigger looks until there is nothing more to do
//	advance 1m                    time passes
//	migrate NAME                  a user creates a migration
//	claim|succeed|fail NAME       a migration goes on
//	delete state|NAME             an administrator deletes an object
//	crd stores=V [stored=V] [without=V]  the CRD says so; "crd gone" deletes it
//	starting a=15s                a server registered just now, with that Lease; "starting" alone: none
//	discovery served|missing|silent
//	print
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out, err := w.run(d)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

func (w *world) run(d *datadriven.TestData) (string, error) {
	first := ""
	if len(d.CmdArgs) > 0 {
		first = d.CmdArgs[0].Key
	}
	switch d.Cmd {
	case "report":
		var reports []agree.Report
		for _, arg := range d.CmdArgs {
			reports = append(reports, agree.Report{Server: agree.ServerID(arg.Key), Encoding: agree.Encoding(arg.Vals[0]),
				Decodable: arg.Vals, Served: arg.Vals[:1]})
		}
		w.report(reports)
	case "collect":
		w.sv = nil
	case "look":
		return w.settle(), nil
	case "advance":
		by, err := time.ParseDuration(first)
		w.now = w.now.Add(by)
		return "", err
	case "migrate":
		w.migrations[first] = &object[Migration]{value: Migration{Name: first, Created: w.now}, rev: w.next()}
	case "claim", "succeed", "fail":
		return "", w.goOn(d.Cmd, first)
	case "delete":
		if first == "state" {
			w.state = nil
		} else {
			delete(w.migrations, first)
		}
	case "crd":
		return "", w.define(d)
	case "starting":
		w.starting = nil
		for _, arg := range d.CmdArgs {
			lease, err := time.ParseDuration(arg.Vals[0])
			if err != nil {
				return "", err
			}
			w.starting = append(w.starting, Starting{Server: agree.ServerID(arg.Key), Since: w.now, Lease: lease})
		}
	case "discovery":
		w.existence = map[string]Existence{"served": Served, "missing": Missing, "silent": NotLooked}[first]
	case "print":
		return w.String(), nil
	default:
		return "", fmt.Errorf("unknown command %s", d.Cmd)
	}
	return "", nil
}

func (w *world) goOn(command, name string) error {
	m := w.migrations[name]
	if m == nil {
		return fmt.Errorf("no migration %s", name)
	}
	return w.change(name, m.rev, func(m *Migration) {
		m.Phase = map[string]Phase{"claim": Running, "succeed": Succeeded, "fail": Failed}[command]
		if m.Phase.Final() {
			m.Ended = w.now
		}
	})
}

func (w *world) define(d *datadriven.TestData) error {
	crd := CRD{Name: "cronjobs.batch"}
	if w.crd != nil {
		crd = w.crd.value
	}
	w.crd = nil
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "stores":
			crd.Storage = agree.Encoding(arg.Vals[0])
			crd.StoredVersions = add(crd.StoredVersions, crd.Storage)
			crd.Versions = add(crd.Versions, crd.Storage)
		case "without":
			crd.Versions = slices.DeleteFunc(slices.Clone(crd.Versions), func(v agree.Encoding) bool { return string(v) == arg.Vals[0] })
		case "stored":
			crd.StoredVersions = nil
			for _, v := range strings.Split(arg.Vals[0], ",") {
				crd.StoredVersions = append(crd.StoredVersions, agree.Encoding(v))
			}
		case "gone":
			return nil
		default:
			return fmt.Errorf("unknown argument %s", arg.Key)
		}
	}
	w.crd = &object[CRD]{value: crd, rev: w.next()}
	return nil
}
