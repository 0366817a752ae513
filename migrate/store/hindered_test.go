package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// one is a KV with one value.
type one struct{ Entry }

func (o one) Range(context.Context, string, string, int64, int64) (Page, error) {
	return Page{Entries: []Entry{o.Entry}, Count: 1, Revision: 1}, nil
}

func (o one) Put(context.Context, Fence, Put) (bool, int64, error) { return true, 2, nil }

func (o one) Prove(context.Context, Fence) error { return nil }

// TestHindered: after some seconds without progress, the reports of a run say why, until it makes progress
// again. They also say whether only this run has to wait, as for a conversion webhook, or all, as for etcd.
func TestHindered(t *testing.T) {
	const away = 20 * time.Second
	for name, test := range map[string]struct {
		err        error
		convert    bool // the conversion does not answer; otherwise the store
		overloaded bool
	}{
		"the webhook": {errors.New("the webhook does not answer"), true, false},
		"the keys":    {ErrKeysUnavailable, false, false},
		"the store":   {ErrUnavailable, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				stored := one{Entry{Key: widgetPrefix + "w", Value: []byte(`{"apiVersion":"example.com/v1","kind":"Widget"}`), ModRevision: 1}}
				kv := hooked{KV: stored, beforePut: func(Fence, Put) error {
					if !test.convert && time.Since(began) < away {
						return fmt.Errorf("put: %w", test.err)
					}
					return nil
				}}
				target := Target{GroupResource: policies, Encoding: "example.com/v2", Prefix: widgetPrefix, FenceKey: policyFence, FenceRevision: 1}
				target.Convert = func(ctx context.Context, _ [][]byte, hindered func(error)) []Converted {
					for test.convert && time.Since(began) < away {
						hindered(test.err)
						time.Sleep(time.Second)
					}
					return []Converted{{Plain: []byte(`{"apiVersion":"example.com/v2","kind":"Widget"}`)}}
				}
				var last Report
				told := 0
				result, err := New(kv).Run(t.Context(), target, Options{}, func(now Report) {
					last = now
					waited := time.Since(began)
					switch {
					case now.Hindered == "" && waited >= hinderedAfter && waited < away, now.Hindered != "" && waited < hinderedAfter:
						t.Errorf("after %s it says %q", waited, now.Hindered)
					case now.Hindered == "":
					case !strings.Contains(now.Hindered, test.err.Error()) || now.Overloaded != test.overloaded:
						t.Errorf("it says %q, of all: %t", now.Hindered, now.Overloaded)
					default:
						told++
					}
				})
				if err != nil || result.Rewritten != 1 || told < 5 || last.Hindered != "" {
					t.Errorf("%+v, %v; it was told %d times, at the end %q", result.Progress, err, told, last.Hindered)
				}
			})
		})
	}
}

// three is a KV of three values.
type three struct{ one }

func (t three) Range(_ context.Context, from, _ string, _, _ int64) (Page, error) {
	page := Page{Count: 3, Revision: 1}
	for i := range 3 {
		if e := (Entry{Key: fmt.Sprintf("%s%d", widgetPrefix, i), Value: t.Value, ModRevision: 1}); e.Key >= from {
			page.Entries = append(page.Entries, e)
		}
	}
	return page, nil
}

// TestHinderedWhileAllFails: values that fail for a conversion webhook that does not answer are no progress; an answer of
// its is, also one that refuses the value.
func TestHinderedWhileAllFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("the webhook does not answer")
		stored := three{one{Entry{Value: []byte(`{"apiVersion":"example.com/v1","kind":"Widget"}`)}}}
		target := Target{GroupResource: policies, Encoding: "example.com/v2", Prefix: widgetPrefix, FenceKey: policyFence, FenceRevision: 1}
		called := 0
		target.Convert = func(_ context.Context, _ [][]byte, hindered func(error)) []Converted {
			switch called++; called {
			case 1:
				time.Sleep(30 * time.Second)
				hindered(down)
			case 3:
				hindered(nil)
				return []Converted{{Reason: Unconverted, Err: errors.New("refused")}}
			}
			return []Converted{{Reason: Unconverted, Err: down}}
		}
		told := [4]string{}
		result, err := New(stored).Run(t.Context(), target, Options{UnderWay: 1, PieceKeys: 1}, func(now Report) { told[now.Failures] = now.Hindered })
		if err != nil || result.Failures != 3 || told[0] != down.Error() || told[1] != down.Error() || told[2] != down.Error() || told[3] != "" {
			t.Errorf("%+v, %v; it says %q", result.Progress, err, told)
		}
	})
}
