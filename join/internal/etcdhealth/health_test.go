package etcdhealth

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/testbed/etcdtest"
)

// TestEtcdHealth follows an etcd that is stopped and started again.
func TestEtcdHealth(t *testing.T) {
	dir, err := os.MkdirTemp("", "health") // its path is short enough for a Unix socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := etcdtest.Config(dir+"/data", url.URL{Scheme: "unix", Path: dir + "/etcd.sock"})
	etcd, err := etcdtest.Start(config)
	must(t, err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + dir + "/etcd.sock"}, Logger: zap.NewNop()})
	must(t, err)
	h := Watch(client, "/registry", 2*time.Second)
	until := func(what string, condition func() bool) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return condition(), nil })
		if err != nil {
			t.Fatalf("etcd is not %s: %v", what, h.Away())
		}
	}
	answered := func() bool {
		h.answers.mu.Lock()
		defer h.answers.mu.Unlock()
		return !h.answers.answered.IsZero() && h.answers.away == nil
	}
	until("there", answered)
	etcd.Close()
	until("away", func() bool { return h.Away() != nil })
	if text := h.Away().Error(); !strings.HasPrefix(text, "etcd has not answered for ") || strings.Contains(text, "\n") {
		t.Errorf("it says %q", text)
	}
	if etcd, err = etcdtest.Start(config); err != nil {
		t.Fatal(err)
	}
	until("back", func() bool { return h.Away() == nil })
	for range 2 {
		h.Stop()
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	etcd.Close()
}

// TestEtcdHealthPermitted: the check works with a user of etcd that may read nothing but the prefix.
func TestEtcdHealthPermitted(t *testing.T) {
	dir, err := os.MkdirTemp("", "health") // its path is short enough for a Unix socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	etcd, err := etcdtest.Start(etcdtest.Config(dir+"/data", url.URL{Scheme: "unix", Path: dir + "/etcd.sock"}))
	must(t, err)
	t.Cleanup(etcd.Close)
	as := func(user string) *clientv3.Client {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + dir + "/etcd.sock"}, Username: user, Password: user, Logger: zap.NewNop()})
		must(t, err)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	admin := as("")
	must := func(_ any, err error) {
		t.Helper()
		must(t, err)
	}
	for _, user := range []string{"root", "kube"} {
		must(admin.RoleAdd(t.Context(), user))
		must(admin.UserAdd(t.Context(), user, user))
		must(admin.UserGrantRole(t.Context(), user, user))
	}
	must(admin.RoleGrantPermission(t.Context(), "kube", "/registry/", clientv3.GetPrefixRangeEnd("/registry/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	must(admin.AuthEnable(t.Context()))
	h := newAnswers(as("kube"), "registry", time.Minute)
	if h.once(t.Context()); h.err() != nil || h.revision() == 0 {
		t.Errorf("it is at revision %d: %v", h.revision(), h.err())
	}
}

// TestEtcdHealthOrder: an answer that comes late does not count if a later request was answered before.
func TestEtcdHealthOrder(t *testing.T) {
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	failed := errors.New("refused")
	for _, test := range []struct {
		name string
		note func(h *answers)
		away bool
	}{
		{"nothing was asked", func(*answers) {}, false},
		{"an answer", func(h *answers) { h.note(at(1), nil) }, false},
		{"a failure", func(h *answers) { h.note(at(1), failed) }, true},
		{"a failure after an answer", func(h *answers) { h.note(at(1), nil); h.note(at(2), failed) }, true},
		{"an answer after a failure", func(h *answers) { h.note(at(1), failed); h.note(at(2), nil) }, false},
		{"a late failure of an earlier question", func(h *answers) { h.note(at(2), nil); h.note(at(1), failed) }, false},
		{"a late answer to an earlier question", func(h *answers) { h.note(at(2), failed); h.note(at(1), nil) }, false},
		{"a failure after a late answer", func(h *answers) {
			h.note(at(1), nil)
			h.note(at(3), failed)
			h.note(at(2), nil)
			h.note(at(3), failed)
		}, true},
	} {
		h := &answers{}
		test.note(h)
		if away := h.err() != nil; away != test.away {
			t.Errorf("%s: away is %t", test.name, away)
		}
	}
}

// TestEtcdHealthBack: an etcd with a lower revision than before was restored from a backup. An answer does not count
// if a later request was answered before.
func TestEtcdHealthBack(t *testing.T) {
	revision := int64(7)
	var during func()
	h := &answers{limit: time.Second, ask: func(context.Context) (int64, error) {
		answer := revision
		if during != nil {
			during()
		}
		return answer, nil
	}}
	step := func(what string, at int64, back bool) {
		t.Helper()
		revision = at
		h.once(t.Context())
		if err := h.wentBack(); (err != nil) != back {
			t.Errorf("%s: %v", what, err)
		}
	}
	step("the first answer", 7, false)
	step("the same", 7, false)
	step("a later one", 9, false)
	during = func() {
		during = nil
		step("a later one meanwhile", 12, false)
	}
	step("an earlier one that comes late", 10, false)
	step("none was made since", 12, false)
	step("restored", 5, true)
	if text := h.wentBack().Error(); !strings.Contains(text, "from revision 12 to 5") {
		t.Errorf("it says %q", text)
	}
	step("written to since then", 100, true)
	if h.err() != nil {
		t.Errorf("it is away: %v", h.err())
	}
	health := &Health{answers: h, space: &space{}}
	if health.Restored().Check(nil) == nil || health.Unwritable() == nil {
		t.Error("it is called healthy, or to take writes")
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// TestEtcdSpace: a put that etcd refuses for lack of space counts at once. An answer that may be older than that
// refusal does not undo it, and while there is no answer, the last known state stays.
func TestEtcdSpace(t *testing.T) {
	var s *space
	alarm, failure, during := false, error(nil), func() {}
	s = &space{limit: time.Second, alarmed: func(context.Context) (bool, error) {
		during()
		return alarm, failure
	}}
	step := func(what string, want bool) {
		t.Helper()
		s.once(t.Context())
		if full := s.err() != nil; full != want {
			t.Errorf("%s: full is %t", what, full)
		}
	}
	step("no alarm", false)
	alarm = true
	step("the alarm", true)
	failure = errors.New("refused")
	step("no answer", true)
	alarm, failure = false, nil
	step("disarmed", false)
	s.refuse()
	if err := s.err(); err == nil || !strings.Contains(err.Error(), "etcdctl alarm disarm") || !errors.Is(err, member.ErrDeletesOnly) {
		t.Errorf("after a put was refused: %v", err)
	}
	step("the alarm was not raised after all", false)
	during = s.refuse
	step("a put was refused while the answer was on its way", true)
	during = func() {}
	step("no alarm again", false)
}
