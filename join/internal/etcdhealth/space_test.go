package etcdhealth

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/concord-dev/concord/member"
)

// TestEtcdSpace: a refused put tells at once; an answer that may be older than a refusal does
// not undo it, and without an answer the state that was known stands.
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
