package observed

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concord-dev/concord/agree"
)

// TestPlacesEnding: a kube-apiserver whose Lease is deleted is still asked at its last address as long as it answers.
// That ends when another process has its address, or when the host has refused connections for the time Drains or has
// not answered for the time Lingers.
func TestPlacesEnding(t *testing.T) {
	at := func(name, holder, address string) Replica {
		return Replica{Process: Process{Lease: agree.ServerID(name), Holder: holder}, Address: address}
	}
	a, b := at("a", "1", "10.0.0.1:6443"), at("b", "1", "10.0.0.2:6443")
	for name, tc := range map[string]struct {
		after          time.Duration
		missed, closed bool // it does not answer; its port is closed
		now            []Replica
		want           string
	}{
		"it answers":                           {2 * Lingers, false, false, []Replica{a}, "a/1 b/1"},
		"it is silent":                         {Lingers - time.Second, true, false, []Replica{a}, "a/1 b/1"},
		"it is silent for long":                {Lingers, true, false, []Replica{a}, "a/1"},
		"its port is closed":                   {Drains - time.Second, true, true, []Replica{a}, "a/1 b/1"},
		"its port is closed for long":          {Drains, true, true, []Replica{a}, "a/1"},
		"it was restarted":                     {time.Second, false, false, []Replica{a, at("b", "2", b.Address)}, "a/1 b/2"},
		"another host has its address":         {time.Second, false, false, []Replica{a, at("c", "1", b.Address)}, "a/1 c/1"},
		"another process has its Lease":        {time.Second, false, false, []Replica{a, at("b", "2", "10.0.0.3:6443")}, "a/1 b/1 b/2"},
		"another process tells no address":     {time.Second, false, false, []Replica{a, at("b", "2", "")}, "a/1 b/2"},
		"another one elsewhere tells none":     {time.Second, false, false, []Replica{a, at("c", "1", "")}, "a/1 b/1 c/1"},
		"it has its Lease again":               {time.Second, false, false, []Replica{a, b}, "a/1 b/1"},
		"silent, and it has its Lease, though": {2 * Lingers, true, true, []Replica{a, b}, "a/1 b/1"},
	} {
		var p Places
		p.Take([]Replica{a, b}, start)
		if len(tc.now) > 1 {
			p.Take(tc.now, start)
		} else if got := p.Take(tc.now, start); len(got) != 2 {
			t.Fatalf("%s: asked are %v", name, got)
		}
		if tc.missed {
			p.Missed(b.Process, tc.closed, start)
			p.Missed(b.Process, tc.closed, start.Add(tc.after))
		}
		var got []string
		for _, r := range p.Take(tc.now, start.Add(tc.after)) {
			got = append(got, fmt.Sprintf("%s/%s", r.Lease, r.Holder))
			if r.Address == "" && r.Process == b.Process {
				t.Errorf("%s: %s has no address", name, r.Lease)
			}
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: asked are %v, want %s", name, got, tc.want)
		}
	}
	var p Places
	p.Take([]Replica{at("a", "1", "")}, start)
	if got := p.Take(nil, start); len(got) != 0 {
		t.Errorf("without an address: %v", got)
	}
}

// TestPlacesAnswered: a refused connection before its last answer does not shorten the time for which a closed port
// is asked.
func TestPlacesAnswered(t *testing.T) {
	r := Replica{Process: Process{Lease: "a", Holder: "1"}, Address: "10.0.0.1:6443"}
	var p Places
	p.Take([]Replica{r}, start)
	p.Take(nil, start)
	p.Missed(r.Process, true, start)
	p.Answered(r.Process)
	closed := start.Add(2 * Drains)
	p.Missed(r.Process, true, closed)
	if got := p.Take(nil, closed); len(got) != 1 {
		t.Errorf("asked are %v", got)
	}
	p.Missed(r.Process, true, closed.Add(Drains))
	if got := p.Take(nil, closed.Add(Drains)); len(got) != 0 {
		t.Errorf("asked are %v", got)
	}
}

// TestPlacesShared: two kube-apiservers that share a Lease cannot be asked one by one, as long as both were seen
// lately.
func TestPlacesShared(t *testing.T) {
	r := Replica{Process: Process{Lease: "a", Holder: "1"}, Address: "10.0.0.1:6443"}
	other := r
	other.Address = "10.0.0.2:6443"
	var p Places
	for i, tc := range []struct {
		after time.Duration
		now   Replica
		apart bool
	}{
		{0, r, true}, {10 * time.Second, r, true}, {20 * time.Second, other, false}, {30 * time.Second, r, false},
		{Lingers, r, false}, {Lingers + 20*time.Second, r, true},
	} {
		got := p.Take([]Replica{tc.now}, start.Add(tc.after))
		if len(got) != 1 || (got[0].Address != "") != tc.apart || strings.Contains(got[0].Nowhere, "10.0.0.1:6443 and 10.0.0.2:6443") == tc.apart {
			t.Errorf("%d: %+v", i, got)
		}
	}
}

// TestPlacesSharedEnding: if one of two kube-apiservers that share a Lease ends, or both, it is not known which, so
// neither can be asked any more.
func TestPlacesSharedEnding(t *testing.T) {
	r := Replica{Process: Process{Lease: "a", Holder: "1"}, Address: "10.0.0.1:6443"}
	other, next := r, r
	other.Address, next.Holder = "10.0.0.2:6443", "2"
	var p Places
	p.Take([]Replica{r}, start)
	p.Take([]Replica{other}, start.Add(time.Second))
	for i, tc := range []struct {
		after time.Duration
		now   []Replica
		want  int
	}{
		{2 * time.Second, nil, 1}, {3 * time.Second, []Replica{next}, 2}, {Lingers - time.Second, []Replica{next}, 2},
	} {
		got := p.Take(tc.now, start.Add(tc.after))
		if len(got) != tc.want || got[0].Address != "" || got[0].Holder != "1" {
			t.Errorf("%d: %+v", i, got)
		}
		p.Missed(r.Process, false, start.Add(tc.after))
	}
	p.Missed(r.Process, false, start.Add(Lingers+2*time.Second))
	if got := p.Take([]Replica{next}, start.Add(Lingers+2*time.Second)); len(got) != 1 || got[0].Process != next.Process {
		t.Errorf("after a while: %+v", got)
	}
}

// TestCounted: while there are more endpoints than Leases, nothing is agreed on. That does not begin a new epoch.
func TestCounted(t *testing.T) {
	m := NewMemory(Config{})
	answers := map[string]Answer{"a": shows(cronjobs, "batch/v1")}
	var epochs []int64
	for i, endpoints := range []int{1, 2, 0} {
		r := round(time.Duration(i)*time.Second, answers)
		r.Before, r.After = Counted(r.Before, endpoints), Counted(r.After, endpoints)
		r.Answers[Process{Lease: Unleased}] = Answer{Failed: "cannot be asked"}
		seen := remembered(t, m, cronjobs, r)
		if (seen.Common == "") != (endpoints == 2) || strings.Contains(seen.Why, string(Unleased)) != (endpoints == 2) {
			t.Errorf("%d endpoints: %+v", endpoints, seen)
		}
		epochs = append(epochs, seen.History.Epoch)
	}
	if slices.Max(epochs) != epochs[0] {
		t.Errorf("the epochs are %v", epochs)
	}
}
