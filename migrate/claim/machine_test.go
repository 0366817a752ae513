package claim

import (
	"errors"
	"fmt"
	"testing"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// TestNext lists the next state for each state that does something and each kind of error.
func TestNext(t *testing.T) {
	ended := &over{migrationv1alpha1.ReasonAgreementLost, "servers do not agree"}
	elsewhere := fmt.Errorf("%w: it does not report the resource", errNotOurs)
	unproven := fmt.Errorf("%w: 3 objects", ErrUnproven)
	for _, c := range []struct {
		err                                        error
		permitting, rewriting, confirming, turning state
	}{
		{nil, rewriting, confirming, succeeding, permitting},
		// Only an error that interrupts a rewrite leads to a new look at the permission, also if
		// ErrFenced says why.
		{errSpeed, retrying, turning, retrying, retrying},
		{errMoved, retrying, permitting, retrying, retrying},
		{errRedefined, retrying, permitting, retrying, retrying},
		{ErrFenced, retrying, permitting, retrying, retrying},
		{fmt.Errorf("%w: %w", ErrFenced, ended), failing, permitting, failing, failing},
		{fmt.Errorf("%w: %w", ErrFenced, elsewhere), releasing, permitting, releasing, releasing},
		{errTaken, leaving, leaving, leaving, leaving},
		{errPaused, pausing, pausing, pausing, pausing},
		{fmt.Errorf("read: %w", ended), failing, failing, failing, failing},
		{elsewhere, releasing, releasing, releasing, releasing},
		{unproven, retrying, retrying, retrying, retrying},
		{errors.New("etcd is away"), retrying, retrying, retrying, retrying},
	} {
		for at, want := range map[state]state{permitting: c.permitting, rewriting: c.rewriting, confirming: c.confirming, turning: c.turning} {
			if got := next(at, c.err); got != want {
				t.Errorf("%s, %v: it goes on %s, want %s", at, c.err, got, want)
			}
		}
	}
}
