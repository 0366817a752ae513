package engines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/keyring"
	"github.com/concord-dev/concord/migrate/claim"
	"github.com/concord-dev/concord/migrate/pace"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/stored/storedtest"
)

// TestBounds: the bounds in a migration's spec come before the server's flags.
func TestBounds(t *testing.T) {
	for _, test := range []struct {
		flag *time.Duration
		job  claim.Job
		want pace.Bounds
	}{
		{nil, claim.Job{}, pace.Bounds{MaxPerSecond: 70}},
		{ptr.To(time.Duration(0)), claim.Job{}, pace.Bounds{Blind: true, MaxPerSecond: 70}},
		{ptr.To(time.Minute), claim.Job{MaxPerSecond: ptr.To[int64](3)}, pace.Bounds{MaxAdded: time.Minute, MaxPerSecond: 3}},
		{ptr.To(time.Minute), claim.Job{MaxAddedLatency: ptr.To(time.Second)}, pace.Bounds{MaxAdded: time.Second, MaxPerSecond: 70}},
		{nil, claim.Job{MaxAddedLatency: ptr.To(time.Duration(0)), MaxPerSecond: ptr.To[int64](0)}, pace.Bounds{Blind: true}},
	} {
		m := New(Config{MaxAddedLatency: test.flag, MaxObjectsPerSecond: 70})
		if got := m.bounds(test.job); got != test.want {
			t.Errorf("%v, %+v: %+v, want %+v", test.flag, test.job, got, test.want)
		}
	}
}

var (
	secretsResource = schema.GroupResource{Resource: "secrets"}
	widgetsResource = schema.GroupResource{Group: "example.com", Resource: "widgets"}
)

// values is a store with these values only.
type values []string

// Range implements migratestore.Reader.
func (v values) Range(context.Context, string, string, int64, int64) (migratestore.Page, error) {
	page := migratestore.Page{Revision: 7, Count: int64(len(v))}
	for i, text := range v {
		page.Entries = append(page.Entries, migratestore.Entry{Key: fmt.Sprintf("/widgets/%d", i), Value: []byte(text), ModRevision: 5})
	}
	return page, nil
}

// TestProve: a rewrite is no success if a value is stored in another encoding after it.
func TestProve(t *testing.T) {
	const old, current = `{"apiVersion":"example.com/v1","kind":"Widget"}`, `{"apiVersion":"example.com/v2","kind":"Widget"}`
	target := &migratestore.Target{GroupResource: widgetsResource, Encoding: "example.com/v2", Prefix: "/widgets/", Transformer: identity.NewEncryptCheckTransformer()}
	if err := prove(t.Context(), values{current, current}, target, nil); err != nil {
		t.Error(err)
	}
	for _, wrong := range []string{old, "k8s:enc:aescbc:v1:a:", "noise"} {
		err := prove(t.Context(), values{current, wrong, current, wrong}, target, nil)
		if err == nil || !strings.Contains(err.Error(), ": 2 values, ") || !strings.Contains(err.Error(), "/widgets/1") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if err := prove(t.Context(), values{old}, &migratestore.Target{Encoding: "example.com/v2", Prefix: "/widgets/"}, nil); err != nil {
		t.Errorf("of a resource that is never encrypted: %v", err)
	}
}

// hiding is a store that hides a key from the engine's reads.
type hiding struct {
	migratestore.KV
	key string
}

// Range implements migratestore.Reader.
func (h hiding) Range(ctx context.Context, start, end string, limit, revision int64) (migratestore.Page, error) {
	page, err := h.KV.Range(ctx, start, end, limit, revision)
	page.Entries = slices.DeleteFunc(page.Entries, func(e migratestore.Entry) bool { return e.Key == h.key })
	return page, err
}

// idle is an engine that does nothing and reports success.
type idle struct{}

// Rewrite implements claim.Rewriter.
func (idle) Rewrite(context.Context, claim.Job, func(claim.Progress)) (claim.Result, error) {
	return claim.Result{}, nil
}

// TestProvenByACensus: neither engine is trusted that no value needs the old key. If there is one value
// that the engine did not meet, the migration is no success.
func TestProvenByACensus(t *testing.T) {
	etcd := storedtest.Start(t)
	const secret = `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x","namespace":"default"}}`
	prefix := etcd.Fill(t, map[string]string{storedtest.VersionKey(secretsResource): "{}"})
	fence := prefix + "/" + storedtest.VersionKey(secretsResource)
	under := stored.ResourcePrefix(prefix, secretsResource, false)
	kv := migratestore.NewEtcd(etcd.Client)
	fenced, err := kv.Range(t.Context(), fence, fence+"\x00", 1, 0)
	if err != nil || len(fenced.Entries) != 1 {
		t.Fatal(err)
	}

	file := filepath.Join(t.TempDir(), "encryption.yaml")
	const aescbc, secretbox = "aescbc: {keys: [{name: a, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}]}", "secretbox: {keys: [{name: b, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}]}"
	configure := func(providers ...string) {
		text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - " + strings.Join(providers, "\n  - ") + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure(aescbc)
	ring, err := keyring.New(t.Context(), keyring.Config{Path: file, Reload: true, Server: "test"})
	if err != nil {
		t.Fatal(err)
	}
	store := func(name string) string {
		key := under + "default/" + name
		sealed, err := ring.TransformerForResource(secretsResource).TransformToStorage(t.Context(), []byte(secret), value.DefaultContext(key))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := etcd.Put(t.Context(), key, string(sealed)); err != nil {
			t.Fatal(err)
		}
		return key
	}
	store("seen")
	unseen := store("unseen")
	configure(secretbox, aescbc)
	if _, err := ring.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	target := &migratestore.Target{
		GroupResource: secretsResource, Encoding: "v1", Prefix: under, FenceKey: fence, FenceRevision: fenced.Entries[0].ModRevision,
		Convert: func(context.Context, [][]byte, func(error)) []migratestore.Converted { return nil },
	}
	if target.Transformer, err = ring.Pin(secretsResource, ring.Keys().Writes(secretsResource)); err != nil {
		t.Fatal(err)
	}
	refused := func(err error) bool {
		return errors.Is(err, claim.ErrUnproven) && strings.Contains(err.Error(), unseen)
	}

	r := New(Config{KV: kv})
	r.store = migratestore.New(hiding{kv, unseen})
	if result, err := r.run(t.Context(), target, migratestore.Options{}, nil); !refused(err) || result.Rewritten != 1 {
		t.Errorf("the rewrite of all but one: %+v, %v", result.Progress, err)
	}
	api := provenAPI{
		Rewriter: idle{}, kv: kv, target: func(context.Context, claim.Job) (*migratestore.Target, error) { return target, nil },
		pacer: func(claim.Job) (*pace.Pacer, func()) { return nil, func() {} },
	}
	if _, err := api.Rewrite(t.Context(), claim.Job{}, nil); !refused(err) {
		t.Errorf("through the API: %v", err)
	}
	r.store = migratestore.New(kv)
	if result, err := r.run(t.Context(), target, migratestore.Options{}, nil); err != nil || result.Rewritten != 1 || result.AlreadyCurrent != 1 {
		t.Errorf("the rewrite of all: %+v, %v", result.Progress, err)
	}
	if _, err := api.Rewrite(t.Context(), claim.Job{}, nil); err != nil {
		t.Errorf("through the API: %v", err)
	}
	api.target = func(context.Context, claim.Job) (*migratestore.Target, error) { return nil, nil }
	if _, err := api.Rewrite(t.Context(), claim.Job{}, nil); err != nil {
		t.Errorf("stored elsewhere: %v", err)
	}
}

// TestProgress: an engine's counts and failures are put into the API's fields, each failure under the
// API's reason.
func TestProgress(t *testing.T) {
	p := migratestore.Progress{Expected: 20, Total: 21, Rewritten: 8, AlreadyCurrent: 4, Gone: 2, Changed: 3, Failures: 7}
	for i := range p.ByReason {
		p.ByReason[i] = 1
	}
	want := claim.Progress{Total: 19, Done: 12, Written: 8, Failed: 7, Conflicts: 3, FailedByReason: map[migrationv1alpha1.MigrationFailureReason]int64{
		migrationv1alpha1.FailureDoesNotDecode:     2, // includes values that cannot be decrypted
		migrationv1alpha1.FailureConversionWebhook: 1,
		migrationv1alpha1.FailureTooLarge:          1,
		migrationv1alpha1.FailureConflict:          1,
		migrationv1alpha1.FailureRejected:          2,
	}}
	if got := progressOf(p); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	want.Hindered, want.Overloaded = "the store does not answer", true
	if got := reportOf(migratestore.Report{Progress: p, Hindered: want.Hindered, Overloaded: true}, "/"); !reflect.DeepEqual(got, want) {
		t.Errorf("of what hinders it got %+v, want %+v", got, want)
	}
	for reason, want := range map[migratestore.Reason]migrationv1alpha1.MigrationFailureReason{
		migratestore.Undecryptable: migrationv1alpha1.FailureDoesNotDecode, migratestore.Undecodable: migrationv1alpha1.FailureDoesNotDecode,
		migratestore.Unconverted: migrationv1alpha1.FailureConversionWebhook, migratestore.Unencodable: migrationv1alpha1.FailureRejected,
		migratestore.WrongEncoding: migrationv1alpha1.FailureRejected, migratestore.TooLarge: migrationv1alpha1.FailureTooLarge,
		migratestore.LeaseLost: migrationv1alpha1.FailureConflict,
	} {
		f := failureOf(migratestore.Failure{Key: "/widgets/default/a", Reason: reason, Detail: "why"}, "/widgets/")
		if f != (claim.Failure{Namespace: "default", Name: "a", Reason: want, Message: string(reason) + ": why"}) {
			t.Errorf("%s is told as %+v", reason, f)
		}
	}
	if f := failureOf(migratestore.Failure{Key: "/nodes/n"}, "/nodes/"); f.Namespace != "" || f.Name != "n" {
		t.Errorf("an object without a namespace is %+v", f)
	}
}

func TestPositions(t *testing.T) {
	const prefix = "/registry/example.com/widgets/"
	report := migratestore.Report{
		Progress: migratestore.Progress{Expected: 9, Total: 5, Rewritten: 3, AlreadyCurrent: 1, Failures: 1},
		Cursor: migratestore.Cursor{
			After:    prefix + "ns/b",
			Progress: migratestore.Progress{Total: 2, Rewritten: 1, Failures: 1},
			Failed:   []migratestore.Failure{{Key: prefix + "ns/a", Reason: migratestore.Undecodable, Detail: "why"}},
		},
	}
	p := reportOf(report, prefix)
	if p.Total != 9 || p.Done != 4 || p.Failed != 1 {
		t.Errorf("progress %+v", p)
	}
	if f := p.Checkpoint.Failures; len(f) != 1 || f[0] != (claim.Failure{Namespace: "ns", Name: "a", Reason: migrationv1alpha1.FailureDoesNotDecode, Message: "Undecodable: why"}) {
		t.Errorf("failures %+v", f)
	}
	if c := cursorOf(p.Checkpoint.Position, prefix); c.After != report.Cursor.After || c.Progress != report.Cursor.Progress {
		t.Errorf("cursor %+v", c)
	}
	for _, bad := range []string{"", "rubbish", "{}", p.Checkpoint.Position[:20]} {
		if c := cursorOf(bad, prefix); c.After != "" || c.Progress != (migratestore.Progress{}) {
			t.Errorf("%q: cursor %+v", bad, c)
		}
	}
	if c := cursorOf(p.Checkpoint.Position, "/registry/others/"); c.After != "" {
		t.Errorf("of another resource: %+v", c)
	}
	if p := reportOf(migratestore.Report{}, prefix); p.Checkpoint.Position != "" {
		t.Errorf("the beginning has a position: %+v", p)
	}
}
