package main

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/bench/stage"
)

func agreement(common agree.Encoding, servers ...agree.ServerID) stage.Agreement {
	a := stage.Agreement{Common: common}
	for _, id := range servers {
		a.Reports = append(a.Reports, agree.Report{Server: id})
	}
	return a
}

func TestReported(t *testing.T) {
	one, two := schema.GroupResource{Resource: "one"}, schema.GroupResource{Resource: "two"}
	all := []schema.GroupResource{one, two}
	for _, test := range []struct {
		name string
		now  map[schema.GroupResource]stage.Agreement
		want string
	}{
		{"all", map[schema.GroupResource]stage.Agreement{one: agreement("v1", "a", "b"), two: agreement("v1", "a", "b")}, ""},
		{"one is missing", map[schema.GroupResource]stage.Agreement{one: agreement("v1", "a", "b")}, "two has 0 reports"},
		{"a report is missing", map[schema.GroupResource]stage.Agreement{one: agreement("v1", "a", "b"), two: agreement("v1", "a")}, "two has 1 reports"},
		{"no agreement", map[schema.GroupResource]stage.Agreement{one: agreement("", "a", "b"), two: agreement("v1", "a", "b")}, `agreement ""`},
		{"an old server", map[schema.GroupResource]stage.Agreement{one: agreement("v1", "a", "old"), two: agreement("v1", "a", "b")}, "report of old"},
	} {
		got := reported(all, 2, "old")(test.now)
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestBuried(t *testing.T) {
	one, two := schema.GroupResource{Resource: "one"}, schema.GroupResource{Resource: "two"}
	for _, test := range []struct {
		now  map[schema.GroupResource]stage.Agreement
		want string
	}{
		{map[schema.GroupResource]stage.Agreement{one: agreement("v1", "a", "b"), two: agreement("v1", "a")}, ""},
		{map[schema.GroupResource]stage.Agreement{one: agreement("v1", "a", "b"), two: agreement("")}, ""},
		{map[schema.GroupResource]stage.Agreement{one: agreement("v1", "a", "dead")}, "report of dead"},
		{map[schema.GroupResource]stage.Agreement{one: agreement("", "a", "b")}, "no agreement"},
	} {
		got := buried("dead")(test.now)
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%v: %q, want %q", test.now, got, test.want)
		}
	}
}

func TestStallsAreThoseAfterTheChange(t *testing.T) {
	began := time.Now()
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	s := &stalls{servers: make([][]float64, 2), refused: map[int]int{}}
	s.note([]attempt{
		{server: 0, began: at(10), end: at(90), code: 200},
		{server: 0, began: at(95), end: at(130), code: 503, err: &stage.StatusError{Code: 503}},
		{server: 0, began: at(150), end: at(170), code: 200},
		{server: 1, began: at(100), end: at(105), code: 200},
	}, []write{{at(10), at(90)}, {at(95), at(170)}, {at(100), at(105)}}, began, at(100))
	if len(s.clients) != 1 || s.clients[0] != 75 || s.calm[0] != 80 {
		t.Errorf("the longest writes are %v ms, before the change %v ms; want 75 and 80", s.clients, s.calm)
	}
	if s.servers[0][0] != 35 || s.servers[1][0] != 5 {
		t.Errorf("the longest requests are %v ms; want 35 and 5", s.servers)
	}
	if s.requests != 4 || s.refused[503] != 1 || s.refusals() != 1 {
		t.Errorf("%d requests, refused %v", s.requests, s.refused)
	}
}
