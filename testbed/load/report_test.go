package load_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/testbed/load"
)

func TestUnexpected(t *testing.T) {
	gr := schema.GroupResource{Resource: "configmaps"}
	failure := func(server string, err error) load.Failure { return load.Failure{Server: server, Err: err} }
	untrue := failure("one", apierrors.NewServiceUnavailable("no"))
	untrue.Untrue = "the object exists"
	refused := &url.Error{Op: "Put", URL: "https://127.0.0.1", Err: syscall.ECONNREFUSED}
	for name, test := range map[string]struct {
		failure load.Failure
		want    bool
	}{
		"try again":                  {failure("one", apierrors.NewServiceUnavailable("wait")), false},
		"too many requests":          {failure("one", apierrors.NewTooManyRequests("slower", 1)), false},
		"wrapped":                    {failure("one", fmt.Errorf("x: %w", apierrors.NewServiceUnavailable("wait"))), false},
		"refused by a stopped one":   {failure("stopped", refused), false},
		"silence of a stopped one":   {failure("stopped", context.DeadlineExceeded), false},
		"broken in mid-stream":       {failure("stopped", errors.New("http2: client connection lost")), false},
		"refused by a running one":   {failure("one", refused), true},
		"an object that is lost":     {failure("stopped", apierrors.NewNotFound(gr, "a")), true},
		"an internal error":          {failure("stopped", apierrors.NewInternalError(errors.New("bug"))), true},
		"an error that is not true":  {untrue, true},
		"forbidden by a stopped one": {failure("stopped", apierrors.NewForbidden(gr, "a", nil)), true},
	} {
		report := load.Report{Failures: []load.Failure{test.failure}}
		if got := len(report.Unexpected(load.BrokenTo("stopped"))) == 1; got != test.want {
			t.Errorf("%s: unexpected is %v, want %v", name, got, test.want)
		}
	}
}

func TestAcross(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	report := load.Report{
		Acks: []load.Ack{
			{Server: "one", Started: at(1), At: at(3)},
			{Server: "one", Started: at(3), At: at(4)},
			{Server: "two", Started: at(1), At: at(3)},
		},
		Failures: []load.Failure{{Server: "one", Started: at(1), At: at(9)}},
	}
	if got := report.Across("one", at(2)); got != 2 {
		t.Errorf("%d writes were under way, want 2", got)
	}
}

func TestDiffer(t *testing.T) {
	result := load.ChurnResult{
		Want:  map[string]string{"ns/same": "1", "ns/changed": "2", "ns/lost": "3"},
		Wrong: []string{"update a: no outcome"},
	}
	found := map[string]string{"ns/same": "1", "ns/changed": "x", "ns/back": "4"}
	want := []string{"update a: no outcome", "ns/changed has another content", "ns/lost is lost", "ns/back is back, or nobody made it"}
	if got := result.Differ(found); !slices.Equal(got, want) {
		t.Errorf("differences are %q, want %q", got, want)
	}
}
