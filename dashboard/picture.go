package dashboard

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/status"
	"github.com/concord-dev/concord/status/servers"
	"github.com/concord-dev/concord/status/timeline"
	"github.com/concord-dev/concord/verdict"
)

// shown bounds the lists of a picture: of more problems the first are shown.
const shown = 100

// picture is everything that the page shows, except for the rows of its table.
type picture struct {
	// Of names the cluster.
	Of       string `json:"of"`
	Headline string `json:"headline"`

	Servers  []servers.Server `json:"servers"`
	Counts   status.Counts    `json:"resources"`
	Problems []status.Problem `json:"problems"`
	// MoreProblems and MoreMoving count the entries that are left out of the lists.
	MoreProblems int               `json:"moreProblems,omitempty"`
	Moving       []status.Moving   `json:"moving"`
	MoreMoving   int               `json:"moreMoving,omitempty"`
	Timeline     []timeline.Moment `json:"timeline"`
	Releases     []release         `json:"releases"`
	Unread       []string          `json:"unread,omitempty"`
	// Reading are the kinds that are still being read: until then there are servers only.
	Reading []string `json:"reading,omitempty"`
	// Unreachable is why the cluster does not answer; empty if it does.
	Unreachable string `json:"unreachable,omitempty"`
}

// release is the verdict on servers of a neighbouring release.
type release struct {
	Release string `json:"release"`
	// Back says that it is an older release.
	Back    bool   `json:"back"`
	Verdict string `json:"verdict"`
	// Resources lists the resources that are not safe: at most shown, of the NotSafe that there are.
	Resources []compat.Finding `json:"resources"`
	NotSafe   int              `json:"notSafe"`
	Judged    int              `json:"judged"`
	Do        string           `json:"do,omitempty"`
}

// beingRead returns the picture of a cluster while only its servers are known.
func beingRead(o status.Observed, reading []string) picture {
	p, _ := pictureOf(status.Observed{Now: o.Now, Leases: o.Leases, Unread: o.Unread}, nil)
	p.Headline, p.Reading = "The cluster is being read: "+strings.Join(reading, ", ")+".", reading
	p.Problems, p.MoreProblems, p.Timeline = []status.Problem{}, 0, []timeline.Moment{}
	return p
}

// pictureOf is the picture of the observed cluster, and the rows of its table.
func pictureOf(o status.Observed, lifecycles []compat.Lifecycle) (picture, []status.Row) {
	c := status.Of(o)
	p := picture{
		Headline: c.Headline(), Servers: c.Servers, Counts: c.Counts, Unread: c.Unread,
		Problems: c.Problems[:min(shown, len(c.Problems))], MoreProblems: max(0, len(c.Problems)-shown),
		Moving: c.Moving[:min(shown, len(c.Moving))], MoreMoving: max(0, len(c.Moving)-shown),
		Timeline: timeline.Of(o), Releases: []release{},
	}
	if c.Do != "" {
		p.Headline += ". What to do: " + c.Do
	}
	for i := range p.Servers {
		if s := p.Servers[i].State; s != servers.Dead && s != servers.Unrenewed {
			p.Servers[i].RenewedSecondsAgo = 0 // or every picture would differ from the last
		}
	}
	if c.Counts.Stored > 0 {
		p.Releases = releases(o, c.Servers, lifecycles)
	}
	return p, c.Rows
}

// releases returns the verdicts on the releases before and after those that serve, from the recorded stored sets:
// nothing is counted.
func releases(o status.Observed, servers []servers.Server, lifecycles []compat.Lifecycle) []release {
	oldest, newest := compat.BinaryVersion(), compat.BinaryVersion()
	var told []*version.Version
	for _, s := range servers {
		if v, err := version.ParseMajorMinor(s.Release); err == nil && !s.Aggregated {
			told = append(told, v)
		}
	}
	if len(told) > 0 {
		compare := func(a, b *version.Version) int {
			return cmp.Or(cmp.Compare(a.Major(), b.Major()), cmp.Compare(a.Minor(), b.Minor()))
		}
		oldest, newest = slices.MinFunc(told, compare), slices.MaxFunc(told, compare)
	}
	cluster := verdict.Cluster{States: o.States, Versions: o.StorageVersions, Now: o.Now, Unserved: o.StorageVersionsUnserved, Migrations: o.Migrations, Leases: o.Leases, Definitions: map[schema.GroupResource]*verdict.Definition{}}
	for i := range o.CRDs {
		d := verdict.DefinitionOf(&o.CRDs[i])
		cluster.Definitions[d.Resource] = &d
	}
	var all []release
	for _, to := range []struct {
		release *version.Version
		back    bool
	}{{newest.AddMinor(1), false}, {oldest.SubtractMinor(1), true}} {
		target := compat.ReleaseTarget(lifecycles, to.release)
		report := verdict.OfServer(target, cluster.Stored(target.Resources()))
		r := release{Release: to.release.String(), Back: to.back, Verdict: verdict.Word(report.Verdict), Resources: []compat.Finding{}, Judged: len(report.Resources), Do: report.Do}
		for _, f := range report.Resources {
			if f.Verdict == compat.Safe {
				continue
			}
			if r.NotSafe++; len(r.Resources) < shown {
				r.Resources = append(r.Resources, f)
			}
		}
		all = append(all, r)
	}
	return all
}

// row is a status.Row as the page gets it, with where it stands among the others.
type row struct {
	status.Row
	Rank int `json:"rank"`
}

// encoded is each row by its resource, and their order.
func encoded(rows []status.Row) (texts map[string]string, order []string, err error) {
	texts = make(map[string]string, len(rows))
	for _, r := range rows {
		text, err := json.Marshal(row{r, r.State.Rank()})
		if err != nil {
			return nil, nil, err
		}
		texts[r.Resource] = string(text)
		order = append(order, r.Resource)
	}
	return texts, order, nil
}
