package api

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// errNoWay says that nothing behind an object that cannot be read can be listed.
var errNoWay = errors.New("there is no way past an object that cannot be read")

// beyond is behind all keys.
const beyond = "\U0010ffff"

const (
	// maxKey bounds a key that is searched for: a namespace and a name have 317 bytes.
	maxKey = 512
	// maxHidden bounds the lists that look for objects which can be read between such that
	// cannot, and maxGuesses where it is not known whether there are any, or a run has made
	// maxGuessed already.
	maxHidden  = 2000
	maxGuesses = 200
	maxGuessed = 50 * maxHidden
	// many objects in a row that cannot be read may be the server's own failure, which passes.
	many = 10
	// A search that had to begin so often at the same key goes without a revision of its own,
	// if that is compacted all the time, or ends, as does one that so often found nothing.
	maxPinned  = 3
	maxReturns = 8
)

// search finds out the keys of objects that make every list fail which they are in. It lists
// one object from some key on, again and again: that fails as long as the key is not behind
// the first such object. Its lists are of one revision, so that their counts compare.
type search struct {
	*lister
	token token
}

// probe is the result of a list of one object.
type probe struct {
	// bad is why it fails, if it does.
	bad *unreadable
	// left is how many objects there are from the key on.
	left int64
	// revision is the list's; 0 if the server's are no numbers.
	revision int64
}

// from lists from a key on.
func (s *search) from(ctx context.Context, key string) (probe, error) {
	return s.patiently(ctx, key, 1)
}

// patiently lists from a key on, so many times if it fails.
func (s *search) patiently(ctx context.Context, key string, tries int) (probe, error) {
	list, err := s.page(ctx, s.token.at(key), 1, tries)
	var bad *unreadable
	switch {
	case errors.As(err, &bad):
		return probe{bad: bad, left: uncounted}, nil
	case err != nil:
		return probe{}, err
	}
	p := probe{left: behind(list)}
	p.revision, _ = strconv.ParseInt(list.ResourceVersion, 10, 64)
	if p.left >= 0 {
		p.left += int64(len(list.Items))
	}
	return p, nil
}

// around goes past the object at a place, which cannot be read, and those behind it that
// cannot be read either. They have failed. The objects that can be read are submitted
// later, from the place that is returned, or are still before that.
func (l *lister) around(ctx context.Context, at place, cause *unreadable) (next place, err error) {
	t, ok := readToken(at.token)
	if !ok {
		return place{}, fmt.Errorf("%w, as its server writes continue tokens of its own: %w", errNoWay, cause)
	}
	if l.returns++; l.stuck != t.Start {
		l.stuck, l.returns = t.Start, 0
	}
	if l.returns > maxReturns || l.blind > maxReturns {
		return place{}, cause
	}
	s := &search{lister: l, token: t}
	next, err = s.around(ctx, at, cause)
	if _, tooOld := Expired(err); tooOld {
		return s.anew(), nil
	}
	return next, err
}

func (s *search) around(ctx context.Context, at place, cause *unreadable) (place, error) {
	// If not even the end can be listed it is not for an object.
	switch end, err := s.from(ctx, beyond); {
	case err != nil:
		return place{}, fmt.Errorf("%w, as the list cannot go on elsewhere (%w): %w", errNoWay, err, cause)
	case end.bad != nil:
		return place{}, cause
	case s.token.Revision == newest && end.revision > 0 && s.returns < maxPinned:
		s.token.Revision = end.revision
	}
	return s.past(ctx, at, beyond, cause)
}

// anew is the search's first key at the newest revision.
func (s *search) anew() place {
	t := s.token
	t.Revision = newest
	return place{token: t.at(t.Start), left: uncounted}
}

// past goes past the object at a place, and those that follow it, as long as they cannot be
// read and are before a limit, from which on the list can go on.
func (s *search) past(ctx context.Context, at place, limit string, cause *unreadable) (place, error) {
	var found []lost
	from := s.token.Start
	for bad := cause; ; {
		if len(found) == many {
			if again, err := s.mayPass(ctx); again || err != nil {
				return at, err
			}
		}
		one, next, err := s.first(ctx, from, limit, bad)
		if err != nil {
			return place{}, err
		}
		if one.key == "" {
			// Was it only now that it could not be read?
			again, err := s.from(ctx, from)
			if err == nil && again.bad != nil {
				again, err = s.from(ctx, next)
				from = next
			}
			if err != nil {
				return place{}, err
			}
			return s.give(ctx, at, from, again.left, found, cause)
		}
		found, from = append(found, one), one.key+"\x00"
		after, err := s.from(ctx, from)
		if err != nil {
			return place{}, err
		}
		if bad = after.bad; bad == nil {
			return s.give(ctx, at, from, after.left, found, cause)
		}
	}
}

// mayPass waits, if it is not certain yet that a failure at many objects does not pass by
// itself, and says whether to begin again.
func (s *search) mayPass(ctx context.Context) (again bool, err error) {
	if !s.outage.lasts(s.opts.Clock.Now()) {
		return false, nil
	}
	s.returns, s.waited = 0, true
	return true, waitOr(ctx, s.opts.Clock, min(s.opts.WebhookPatience/8+minBackoff, maxBackoff), nil)
}

// lost is an object that no list at the search's revision can have in it, and was found out.
type lost struct {
	key string
	// failure is why it cannot be read, unless it is gone now, or can be read as it is now.
	failure Failure
	gone    bool
	now     *metav1.PartialObjectMetadata
}

func (l lost) failed() bool { return !l.gone && l.now == nil }

// give gives up the objects from a place to a key, with so many objects from there on, unless
// something is found there that can be read; then only the objects before that.
func (s *search) give(ctx context.Context, at place, to string, left int64, found []lost, cause *unreadable) (place, error) {
	start := s.token.Start
	if to == start {
		return s.place(to, left), nil // it can be read now
	}
	if to == beyond {
		left = 0
	}
	hidden := at.left - left - int64(len(found))
	counted := at.left >= 0 && left >= 0 && hidden >= 0
	switch changed := slices.ContainsFunc(found, func(l lost) bool { return !l.failed() }); {
	case !counted && changed && s.returns < maxPinned:
		return s.anew(), nil
	case counted && hidden > many, left <= 0 && (!counted || hidden > 0):
		if again, err := s.mayPass(ctx); again || err != nil {
			return at, err
		}
	}
	if !counted || hidden > 0 {
		middle, err := s.between(ctx, start, to, counted, found)
		if err != nil {
			return place{}, err
		}
		if middle != "" {
			return s.past(ctx, at, middle, cause)
		}
	}
	if !counted {
		hidden = 0
	}
	if !slices.ContainsFunc(found, lost.failed) && (len(found) == 0 || !counted) {
		hidden = max(1, hidden)
	}
	next := s.place(to, left)
	return next, s.lost(ctx, next, found, hidden, counted, cause)
}

// place is a key where the list goes on. A count of no certain revision compares with none.
func (s *search) place(key string, left int64) place {
	if s.token.Revision == newest {
		left = uncounted
	}
	return place{token: s.token.at(key), left: left}
}

// lost ends objects before a place that were found, and so many that were not.
func (s *search) lost(ctx context.Context, next place, found []lost, hidden int64, counted bool, cause *unreadable) error {
	s.passed, s.submitted = true, true
	to, _ := readToken(next.token)
	where := fmt.Sprintf("between %q and %q", strings.TrimSuffix(s.token.Start, "\x00"), strings.TrimSuffix(to.Start, "\x00"))
	if s.blind++; len(found) > 0 {
		s.blind = 0
	}
	p := s.listed(len(found)+int(hidden), next.token, next.left)
	for _, one := range found {
		switch {
		case one.gone:
			s.took(p, Progress{Gone: 1})
		case one.now != nil:
			if err := s.task(ctx, one.now, p); err != nil {
				return err
			}
		default:
			if !counted {
				one.failure.Detail = fmt.Sprintf("there may be more objects %s, which were not seen: %s", where, one.failure.Detail)
			}
			s.name(p, one.failure)
			s.lose(p, one.failure.Reason)
		}
	}
	if hidden > 0 {
		number := fmt.Sprint(hidden)
		if !counted {
			number = "some"
		}
		s.name(p, Failure{Reason: cause.reason, Detail: fmt.Sprintf("%s objects %s cannot be read: %s", number, where, detail(cause.err))})
		for range hidden {
			s.lose(p, cause.reason)
		}
	}
	s.progress.Tell()
	return nil
}

func (s *search) lose(p *page, reason Reason) {
	what := Progress{}
	what.Failed[reason]++
	s.end(p, what)
}

// first finds the first object from a key on, which cannot be read: first as the last one at
// which lists fail in the same words, so that its neighbours are told apart, then as the
// last one at which they fail. It is sure once the server fails at the object itself, or the
// object has changed since the search's revision; without a key there is only where the list
// can go on.
func (s *search) first(ctx context.Context, from, limit string, bad *unreadable) (one lost, next string, err error) {
	for _, alike := range []bool{true, false} {
		one.key, next, err = s.last(ctx, from, limit, func(p probe) bool {
			return p.bad != nil && (!alike || p.bad.Error() == bad.Error())
		})
		if err != nil {
			return lost{}, "", err
		}
		name := nameAt(one.key)
		if name.Name == "" || one.key < from { // it has failed at none of them
			one = lost{}
			continue
		}
		now, err := s.look(ctx, name)
		switch v := judge(err); {
		case ctx.Err() != nil || errors.Is(err, ErrUnavailable):
			return lost{}, "", err
		case err == nil || gone(err):
			if one.gone = err != nil; !one.gone {
				one.now = now
			}
			if was, err := s.was(ctx, one.key); err != nil || was {
				return one, next, err
			}
			one = lost{}
		case v.answer == unable || apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
			one = lost{}
		default:
			one.failure = Failure{NamespacedName: name, Reason: v.reason, Detail: detail(err)}
			if v.reason == Rejected {
				one.failure.Reason = bad.reason
			}
			return one, next, nil
		}
	}
	return lost{}, next, nil
}

// was says whether there was an object at a key, at the search's revision, that cannot be
// read: a list from there on fails, but from behind it does not.
func (s *search) was(ctx context.Context, key string) (bool, error) {
	if s.token.Revision == newest {
		return false, nil
	}
	at, err := s.patiently(ctx, key, attempts)
	if err != nil || at.bad == nil {
		return false, err
	}
	behind, err := s.patiently(ctx, key+"\x00", attempts)
	return err == nil && behind.bad == nil, err
}

func nameAt(key string) types.NamespacedName {
	switch parts := strings.Split(key, "/"); len(parts) {
	case 1:
		return types.NamespacedName{Name: key}
	case 2:
		return types.NamespacedName{Namespace: parts[0], Name: parts[1]}
	}
	return types.NamespacedName{}
}

// printable are the bytes of the keys that are found out, in order, and usual those of most.
var printable = func() string {
	var all []byte
	for c := byte(' '); c <= '~'; c++ {
		all = append(all, c)
	}
	return string(all)
}()

const usual = "-./0123456789:abcdefghijklmnopqrstuvwxyz"

// last returns the last key from one on and before another for which a list is still as it
// is for the first, and the next one known for which it is not. It takes it that there is only
// one such change, and looks for it near the first key to begin with.
func (s *search) last(ctx context.Context, from, limit string, still func(probe) bool) (key, next string, err error) {
	low, high := from, limit
	is := func(key string) bool {
		if err != nil || key >= high {
			return false
		}
		if key <= low {
			return true
		}
		var p probe
		if p, err = s.from(ctx, key); err != nil {
			return false
		}
		if still(p) {
			low = key
			return true
		}
		high = key
		return false
	}
	for _, sibling := range after(strings.TrimSuffix(from, "\x00")) {
		if !is(sibling) {
			break
		}
	}
	for len(key) < maxKey {
		if key > from && !is(key+"\x00") {
			return key, high, err
		}
		n := sort.Search(len(printable), func(i int) bool { return !is(key + printable[i:i+1]) })
		switch {
		case n == 0 || err != nil:
			return key, high, err
		case n == len(printable) && is(key+"\x7f"):
			return "", high, err // it goes on with a byte that is not printable
		}
		key += printable[n-1 : n]
	}
	return "", high, nil
}

// after returns keys behind one, the nearest first: with another last byte, another last but
// one and so on.
func after(key string) (keys []string) {
	for n := max(0, len(key)-1); n >= 0; n-- {
		if !utf8.ValidString(key[:n]) {
			continue // within a character
		}
		for i := range usual {
			if key == "" || usual[i] > key[n] {
				keys = append(keys, key[:n]+usual[i:i+1])
			}
		}
	}
	return keys
}

// before returns keys before one, the nearest first.
func before(key string) (keys []string) {
	for n := len(key) - 1; n >= 0; n-- {
		if !utf8.ValidString(key[:n]) {
			continue
		}
		for i := len(usual) - 1; i >= 0; i-- {
			if usual[i] < key[n] {
				keys = append(keys, key[:n]+usual[i:i+1])
			}
		}
	}
	return keys
}

// between looks for a key between two from which on something can be read that nobody has
// seen: next to the upper one, then everywhere, the short ones first. It may miss one whose
// name has much in common with that of an object that cannot be read.
func (s *search) between(ctx context.Context, low, to string, counted bool, found []lost) (string, error) {
	high, times := strings.TrimSuffix(to, "\x00"), maxHidden
	if len(found) > 0 {
		high = found[len(found)-1].key
	}
	if !counted || s.guessed > maxGuessed {
		times = maxGuesses
	}
	for key := range candidates(low, high) {
		if times--; times < 0 {
			break
		}
		s.guessed++
		if p, err := s.from(ctx, key); err != nil || p.bad == nil {
			return key, err
		}
	}
	return "", nil
}

func candidates(low, high string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, key := range before(high) {
			if key > low && !yield(key) {
				return
			}
		}
		for cells := []string{""}; len(cells) > 0; {
			var inner []string
			for _, cell := range cells {
				for i := range usual {
					key := cell + usual[i:i+1]
					if key >= high || key < low && !strings.HasPrefix(low, key) {
						continue
					}
					if inner = append(inner, key); key > low && !yield(key) {
						return
					}
				}
			}
			cells = inner
		}
	}
}
