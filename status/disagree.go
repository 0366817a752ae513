package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/status/prose"
	"github.com/concord-dev/concord/status/servers"
)

// side is the servers that write a resource in one encoding.
type side struct {
	encoding agree.Encoding
	servers  []servers.Server
}

// sides divides the servers that report by the encoding that they write, the fewest servers first.
// Those that do not report are left out.
func (x *index) sides(r *resource) []side {
	var all []side
	for _, report := range r.reports {
		if report.Encoding == evolve.Unknown {
			continue
		}
		server, _ := x.server(report.Server)
		i := slices.IndexFunc(all, func(s side) bool { return s.encoding == report.Encoding })
		if i < 0 {
			all = append(all, side{encoding: report.Encoding})
			i = len(all) - 1
		}
		all[i].servers = append(all[i].servers, server)
	}
	for _, s := range all {
		slices.SortFunc(s.servers, func(a, b servers.Server) int { return strings.Compare(a.ID, b.ID) })
	}
	slices.SortFunc(all, func(a, b side) int {
		return cmp.Or(cmp.Compare(len(a.servers), len(b.servers)), cmp.Compare(a.encoding, b.encoding))
	})
	return all
}

// who names the servers of a side, with their versions.
func (s side) who() string {
	var names []string
	for _, server := range s.servers {
		name := server.ID
		if server.Release != "" {
			name += " (" + server.Versions() + ")"
		}
		names = append(names, name)
	}
	return prose.Some(names) + " " + prose.Plural(len(names), "writes", "write")
}

// disagreement is that servers write the resource in different encodings; the Kind is empty
// if they do not.
func (x *index) disagreement(r *resource) Problem {
	sides := x.sides(r)
	if len(sides) < 2 {
		return Problem{}
	}
	var said, alike []string
	for _, s := range sides {
		said = append(said, s.who()+" "+string(s.encoding))
		alike = append(alike, s.who())
	}
	text := strings.Join(said, "; ")
	return Problem{
		Kind: Disagreement, Resources: []string{r.String()},
		Text:  fmt.Sprintf("%s: servers disagree: %s", r, text),
		Do:    x.settleDisagreement(r, sides),
		alike: strings.Join(alike, "|"),
	}
}

// settleDisagreement says how servers come to agree.
func (x *index) settleDisagreement(r *resource, sides []side) string {
	var dead, gone []string
	aggregated := false
	versions, builds, plain := map[string]bool{}, map[string]bool{}, map[agree.Encoding]bool{}
	for _, s := range sides {
		plain[s.encoding.Plain()] = true
		for _, server := range s.servers {
			versions[server.Versions()+" from "+server.ReadableFrom] = true
			builds[server.Build] = true
			aggregated = aggregated || server.Aggregated
			switch server.State {
			case servers.Dead:
				dead = append(dead, server.ID)
			case "":
				gone = append(gone, server.ID)
			}
		}
	}
	switch {
	case len(dead) > 0:
		return "they agree when the Lease of " + prose.Some(dead) + " is gone"
	case len(gone) > 0:
		return "wait: the Lease of " + prose.Some(gone) + " is gone, and what it reported goes within seconds"
	case len(plain) == 1:
		if plugin := plugins(sides); plugin != "" {
			return plugin
		}
		return "they encrypt with different keys: give all of them the same first key in --encryption-provider-config"
	case aggregated:
		return "finish the roll of these aggregated API servers, or compare their flags: they agree when all write one version"
	case len(versions) > 1 && r.crd == nil:
		return "finish the roll: they agree when all have one release, --emulation-version and --min-compatibility-version"
	case r.crd != nil:
		return fmt.Sprintf("the definition stores %s: servers follow it within seconds; if this lasts, the log of %s says why", StorageOf(r.crd), sides[0].servers[0].ID)
	}
	flags := "compare the flags --runtime-config, --emulation-version and --min-compatibility-version of these servers"
	if len(builds) > 1 {
		return "finish the roll, since these servers are of different builds of Concord; else " + flags
	}
	return flags
}

// plugins says how servers come to agree whose first provider is the same KMS plugin, and that differ in the key that
// it names; "" in other cases.
func plugins(sides []side) string {
	key := sides[0].encoding.Seal().Key()
	if !strings.HasPrefix(key, "kms:v2:") || slices.ContainsFunc(sides, func(s side) bool { return s.encoding.Seal().Key() != key }) {
		return ""
	}
	name := strings.TrimPrefix(key, "kms:v2:")
	var told []string
	for _, s := range sides {
		var ids []string
		for _, server := range s.servers {
			ids = append(ids, server.ID)
		}
		if !s.encoding.Seal().Known() {
			return fmt.Sprintf("%s has not reached its KMS plugin %s: see that the plugin runs beside it, and kubectl get --raw '/readyz/kms-providers', which it answers by --server", prose.Some(ids), name)
		}
		told = append(told, prose.Some(ids))
	}
	return fmt.Sprintf("their KMS plugins named %q name different keys: wait half a minute, in which each server asks its own again; if this lasts, see which plugin still names the old key, that of %s", name, strings.Join(told, " or that of "))
}

// waitsFor are the servers that keep the resource from agreement and that have a problem of
// their own: they do not report, or are dead or late while the servers disagree, or no server of Concord is left.
func (x *index) waitsFor(r *resource) []servers.Server {
	var all []servers.Server
	if x.stockAnswered && r.counts() { // by their Leases, since there are no reports
		return slices.DeleteFunc(slices.Clone(x.servers), func(s servers.Server) bool { return s.Silence == "" && !(s.State == servers.Dead && s.Last) })
	}
	disagree := len(x.sides(r)) > 1
	for _, report := range r.reports {
		server, _ := x.server(report.Server)
		if report.Encoding == evolve.Unknown || disagree && (server.State == servers.Dead || server.Late) {
			all = append(all, server)
		}
	}
	return all
}
