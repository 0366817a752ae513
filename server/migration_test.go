package server

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/controller/migrate"
	"github.com/concord-dev/concord/rewrite"
)

// A job gives way as its migration says, and else as the flags do; to clients in any case.
func TestYield(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	r := rewriter{p: &protocol{
		options:    &Options{MigrationMaxAddedLatency: 5 * time.Millisecond, MigrationMaxObjectsPerSecond: 70},
		clientLoad: clientLoad{clock: clock},
	}}
	for _, test := range []struct {
		job          migrate.Job
		latency      time.Duration
		maxPerSecond int
	}{
		{migrate.Job{}, 5 * time.Millisecond, 70},
		{migrate.Job{MaxAddedLatency: ptr.To(time.Second)}, time.Second, 70},
		{migrate.Job{MaxAddedLatency: ptr.To(time.Duration(0)), MaxPerSecond: ptr.To[int64](0)}, 0, 0}, // without a bound
		{migrate.Job{MaxPerSecond: ptr.To[int64](3)}, 5 * time.Millisecond, 3},
	} {
		y := r.p.yield(test.job)
		if y.MaxAddedLatency != test.latency || y.MaxPerSecond != test.maxPerSecond {
			t.Errorf("%+v gives way by %v and %d objects/s, want %v and %d", test.job, y.MaxAddedLatency, y.MaxPerSecond, test.latency, test.maxPerSecond)
		}
		idle := y.Busy()
		r.p.clientLoad.add(1)
		clock.Step(900 * time.Millisecond)
		if served := y.Busy(); idle || !served {
			t.Errorf("clients are served: %t with none, %t with one", idle, served)
		}
		api := giving(y)
		if looks := api.Busy != nil && api.Busy(); looks != (test.latency > 0) || api.MaxPerSecond != test.maxPerSecond {
			t.Errorf("%+v gives way to clients through the API: %t, and by %d objects/s", test.job, looks, api.MaxPerSecond)
		}
		r.p.clientLoad.add(-1)
		clock.Step(2 * loadWindow)
	}
}

// values are a store that has nothing else.
type values []string

// Range implements rewrite.Reader.
func (v values) Range(context.Context, string, string, int64, int64) (rewrite.Page, error) {
	page := rewrite.Page{Revision: 7, Count: int64(len(v))}
	for i, text := range v {
		page.Entries = append(page.Entries, rewrite.Entry{Key: fmt.Sprintf("/widgets/%d", i), Value: []byte(text), ModRevision: 5})
	}
	return page, nil
}

// A rewrite after which a value is not as it should be is no success.
func TestProve(t *testing.T) {
	const old, current = `{"apiVersion":"example.com/v1","kind":"Widget"}`, `{"apiVersion":"example.com/v2","kind":"Widget"}`
	target := &rewrite.Target{GroupResource: widgetsResource, Encoding: "example.com/v2", Prefix: "/widgets/", Transformer: identity.NewEncryptCheckTransformer()}
	if err := prove(t.Context(), values{current, current}, target); err != nil {
		t.Error(err)
	}
	for _, wrong := range []string{old, "k8s:enc:aescbc:v1:a:", "noise"} {
		err := prove(t.Context(), values{current, wrong, current, wrong}, target)
		if err == nil || !strings.Contains(err.Error(), "found 2 values") || !strings.Contains(err.Error(), "/widgets/1") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if err := prove(t.Context(), values{old}, &rewrite.Target{Encoding: "example.com/v2", Prefix: "/widgets/"}); err != nil {
		t.Errorf("of a resource that is never encrypted: %v", err)
	}
}

// What an engine counts is told in the API's words, each reason in the one that it is.
func TestProgress(t *testing.T) {
	p := rewrite.Progress{Expected: 20, Total: 21, Rewritten: 8, AlreadyCurrent: 4, Gone: 2, Changed: 3, Failures: 7}
	for i := range p.ByReason {
		p.ByReason[i] = 1
	}
	want := migrate.Progress{Total: 21, Done: 14, Failed: 7, Conflicts: 3, FailedByReason: map[migrationv1alpha1.MigrationFailureReason]int64{
		migrationv1alpha1.FailureDoesNotDecode:     2, // as does what cannot be decrypted
		migrationv1alpha1.FailureConversionWebhook: 1,
		migrationv1alpha1.FailureTooLarge:          1,
		migrationv1alpha1.FailureConflict:          1,
		migrationv1alpha1.FailureRejected:          2,
	}}
	if got := progressOf(p); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for reason, want := range map[rewrite.Reason]migrationv1alpha1.MigrationFailureReason{
		rewrite.Undecryptable: migrationv1alpha1.FailureDoesNotDecode, rewrite.Undecodable: migrationv1alpha1.FailureDoesNotDecode,
		rewrite.Unconverted: migrationv1alpha1.FailureConversionWebhook, rewrite.Unencodable: migrationv1alpha1.FailureRejected,
		rewrite.WrongEncoding: migrationv1alpha1.FailureRejected, rewrite.TooLarge: migrationv1alpha1.FailureTooLarge,
		rewrite.LeaseLost: migrationv1alpha1.FailureConflict,
	} {
		f := failureOf(rewrite.Failure{Key: "/widgets/default/a", Reason: reason, Detail: "why"}, "/widgets/")
		if f != (migrate.Failure{Namespace: "default", Name: "a", Reason: want, Message: string(reason) + ": why"}) {
			t.Errorf("%s is told as %+v", reason, f)
		}
	}
	if f := failureOf(rewrite.Failure{Key: "/nodes/n"}, "/nodes/"); f.Namespace != "" || f.Name != "n" {
		t.Errorf("an object without a namespace is %+v", f)
	}
}
