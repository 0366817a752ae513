package convert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/concord-dev/concord/join/internal/convert/coalesce"
	migrateapi "github.com/concord-dev/concord/migrate/api"
)

const (
	// maxReviewBytes bounds the objects of a review that several are put together in.
	maxReviewBytes = 1 << 20
	// reviewPatience bounds how long requests wait for conversions that are made together: each
	// waits for webhookTimeout at most, and has to have time left to ask alone. When it was not
	// enough, all ask alone for aloneFor.
	reviewPatience = 5 * time.Second
	aloneFor       = 30 * time.Second
)

// UnderWay are the objects that migrations through the API write at the moment. It is known
// by them which conversions are theirs: apiextensions converts without a context.
type UnderWay struct {
	mu      sync.Mutex
	objects map[types.UID]*writing
}

// writing is an object that is written. Its managed fields need the same conversion several
// times, which is made once.
type writing struct {
	times int // it is written

	mu        sync.Mutex
	converted map[string]json.RawMessage // by desired version and the object as it was
}

// of returns an object that is written; nil if it is not.
func (u *UnderWay) of(uid types.UID) *writing {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.objects[uid]
}

func (u *UnderWay) empty() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.objects) == 0
}

// begin notes an object until done is called.
func (u *UnderWay) begin(uid types.UID) (done func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.objects == nil {
		u.objects = map[types.UID]*writing{}
	}
	if u.objects[uid] == nil {
		u.objects[uid] = &writing{converted: map[string]json.RawMessage{}}
	}
	w := u.objects[uid]
	w.times++
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if w.times--; w.times == 0 {
			delete(u.objects, uid)
		}
	}
}

// Noted returns an API that notes in u which objects are written through it.
func Noted(api migrateapi.API, u *UnderWay) migrateapi.API { return notedAPI{API: api, underWay: u} }

// Together returns a wrapper of webhooks' resolvers by which conversions of objects in u that
// come at once are made by one call.
func Together(wrapper webhook.AuthenticationInfoResolverWrapper, u *UnderWay) webhook.AuthenticationInfoResolverWrapper {
	return through(wrapper, func(next http.RoundTripper) http.RoundTripper { return newReviews(next, u) })
}

// notedAPI notes which objects are written through an API.
type notedAPI struct {
	migrateapi.API
	underWay *UnderWay
}

// Patch implements migrateapi.API.
func (a notedAPI) Patch(ctx context.Context, resource schema.GroupVersionResource, object types.NamespacedName, patch []byte) error {
	var of metav1.PartialObjectMetadata
	if json.Unmarshal(patch, &of) == nil && of.UID != "" {
		defer a.underWay.begin(of.UID)()
	}
	return a.API.Patch(ctx, resource, object, patch)
}

// reviews is the transport to one conversion webhook. Conversions of single objects that
// migrations through the API need, and that come while one of them is under way, are made by
// one review, and only once if they are the same; all others pass. An object that is refused
// fails no other: a review of several that is not answered, or not as it should be, is divided
// until the webhook turns out to be away, and one that takes long is given up for one of each.
type reviews struct {
	next     http.RoundTripper
	underWay *UnderWay
	patience time.Duration

	mu   sync.Mutex
	kind map[reviewKind]*coalesce.Calls[conversionCall, conversionAnswer]
	// alone is until when none are made together.
	alone time.Time
}

// reviewKind holds the properties in which conversions agree that can be in one review. A
// webhook and a definition have few kinds.
type reviewKind struct{ url, review, desired string }

func newReviews(next http.RoundTripper, of *UnderWay) *reviews {
	return &reviews{next: next, underWay: of, patience: reviewPatience, kind: map[reviewKind]*coalesce.Calls[conversionCall, conversionAnswer]{}}
}

// WrappedRoundTripper lets client-go find the transport that ends requests.
func (r *reviews) WrappedRoundTripper() http.RoundTripper { return r.next }

// together makes the calls of a kind.
func (r *reviews) together(c conversionCall) *coalesce.Calls[conversionCall, conversionAnswer] {
	kind := reviewKind{c.request.URL.String(), c.review.APIVersion, c.review.Request.DesiredAPIVersion}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kind[kind] == nil {
		r.kind[kind] = &coalesce.Calls[conversionCall, conversionAnswer]{Fits: fitsReview, Make: r.convert}
	}
	return r.kind[kind]
}

// conversionCall is a request to convert one object.
type conversionCall struct {
	request *http.Request
	body    []byte
	review  conversionReview
	of      *writing
}

func (c conversionCall) key() string {
	return c.request.URL.String() + " " + c.review.Request.DesiredAPIVersion + " " + string(c.review.Request.Objects[0])
}

// known is the answer if the object was converted before, as it is, while it is written.
func (c conversionCall) known() (conversionAnswer, bool) {
	c.of.mu.Lock()
	object, ok := c.of.converted[c.key()]
	c.of.mu.Unlock()
	if !ok {
		return conversionAnswer{}, false
	}
	return c.answer(object, metav1.Status{Status: metav1.StatusSuccess})
}

func (c conversionCall) learn(a conversionAnswer) {
	var review conversionReview
	if a.status != http.StatusOK || json.Unmarshal(a.body, &review) != nil || !review.answers(c.review) || len(review.Response.ConvertedObjects) != 1 {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.converted[c.key()] = review.Response.ConvertedObjects[0]
}

// answer is that the object was converted to this.
func (c conversionCall) answer(object json.RawMessage, result metav1.Status) (conversionAnswer, bool) {
	body, err := json.Marshal(conversionReview{TypeMeta: c.review.TypeMeta, Response: &conversionResponse{
		UID: c.review.Request.UID, ConvertedObjects: []json.RawMessage{object}, Result: result,
	}})
	return conversionAnswer{status: http.StatusOK, header: http.Header{"Content-Type": {runtime.ContentTypeJSON}}, body: body}, err == nil
}

// conversionReview is one of any version, as far as these differ in nothing else.
type conversionReview struct {
	metav1.TypeMeta
	Request  *conversionRequest  `json:"request,omitempty"`
	Response *conversionResponse `json:"response,omitempty"`
}

// answers says whether a review is an answer to another, which says that all is well.
func (a conversionReview) answers(asked conversionReview) bool {
	return a.TypeMeta == asked.TypeMeta && a.Response != nil && a.Response.Result.Status == metav1.StatusSuccess &&
		(a.Response.UID == asked.Request.UID || a.APIVersion != apiextensionsv1.SchemeGroupVersion.String())
}

type conversionRequest struct {
	UID               types.UID         `json:"uid"`
	DesiredAPIVersion string            `json:"desiredAPIVersion"`
	Objects           []json.RawMessage `json:"objects"`
}

type conversionResponse struct {
	UID              types.UID         `json:"uid"`
	ConvertedObjects []json.RawMessage `json:"convertedObjects"`
	Result           metav1.Status     `json:"result"`
}

type conversionAnswer struct {
	// late says that there is no answer: the request is to be made again alone.
	late   bool
	status int
	header http.Header
	body   []byte
	err    error
}

// RoundTrip implements http.RoundTripper.
func (r *reviews) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodPost || request.Body == nil || r.underWay.empty() {
		return r.next.RoundTrip(request)
	}
	body, err := io.ReadAll(request.Body)
	_ = request.Body.Close()
	if err != nil {
		return nil, err
	}
	one := conversionCall{request: request, body: body}
	if !r.read(&one) {
		return r.next.RoundTrip(withBody(request.Context(), request, body))
	}
	answer, ok := one.known()
	if !ok && r.asksAlone(time.Now()) {
		return r.next.RoundTrip(withBody(request.Context(), request, body))
	}
	if !ok {
		answer, err = r.together(one).Do(request.Context(), one)
		if err = errors.Join(err, answer.err); err != nil {
			return nil, err
		}
		if answer.late {
			return r.next.RoundTrip(withBody(request.Context(), request, body))
		}
		one.learn(answer)
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", answer.status, http.StatusText(answer.status)), StatusCode: answer.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: answer.header, Body: io.NopCloser(bytes.NewReader(answer.body)), ContentLength: int64(len(answer.body)), Request: request,
	}, nil
}

// read says whether a call is the conversion of one object for a migration.
func (r *reviews) read(c *conversionCall) bool {
	if json.Unmarshal(c.body, &c.review) != nil || c.review.Request == nil || len(c.review.Request.Objects) != 1 {
		return false
	}
	var object metav1.PartialObjectMetadata
	if json.Unmarshal(c.review.Request.Objects[0], &object) == nil {
		c.of = r.underWay.of(object.UID)
	}
	return c.of != nil
}

func fitsReview(batch []conversionCall, next conversionCall) bool {
	size := len(next.body)
	for _, c := range batch {
		size += len(c.body)
	}
	return len(batch) < maxReview && size <= maxReviewBytes
}

func (r *reviews) asksAlone(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Before(r.alone)
}

// convert has objects converted by one review, or by several if that is not answered as it
// should be, for as long as the others have patience.
func (r *reviews) convert(ctx context.Context, batch []conversionCall) ([]conversionAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	answers, err := r.divide(ctx, batch)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r.mu.Lock()
		r.alone = time.Now().Add(aloneFor)
		r.mu.Unlock()
	}
	return answers, err
}

// divide makes one review, and reviews of its halves if it is not answered as it should be,
// and so on. The webhook may give no answer for one of the objects, or because they are many;
// it counts as away if it gives none for two single ones either, which are those furthest
// from each other, since the objects it fails at may be side by side.
func (r *reviews) divide(ctx context.Context, batch []conversionCall) ([]conversionAnswer, error) {
	answers := make([]conversionAnswer, len(batch))
	answered, alone := false, 0 // any of the reviews; reviews of one object that were not
	for parts := []stretch{{0, len(batch)}}; len(parts) > 0; {
		at := 0
		if alone > 0 && !answered {
			at = len(parts) - 1
		}
		p := parts[at]
		all, answer, err := r.review(ctx, batch[p.from:p.to])
		if err != nil {
			return nil, err
		}
		unanswered := answer.late || answer.unanswered()
		answered = answered || !unanswered
		if unanswered && p.size() == 1 {
			alone++
		}
		switch {
		case answer.late || errors.Is(ctx.Err(), context.Canceled) || !answered && alone == 2:
			for _, p := range parts {
				p.fill(answers, answer)
			}
			return answers, nil
		case p.size() == 1:
			p.fill(answers, answer)
		case unanswered || !answer.split(all, batch[p.from:p.to], answers[p.from:p.to]):
			parts = slices.Insert(parts, at+1, p.halves()...)
		}
		parts = slices.Delete(parts, at, at+1)
	}
	return answers, nil
}

// stretch is those of a batch from one on and before another.
type stretch struct{ from, to int }

func (s stretch) size() int { return s.to - s.from }

func (s stretch) halves() []stretch {
	middle := s.from + s.size()/2
	return []stretch{{s.from, middle}, {middle, s.to}}
}

// fill makes one answer that of all in it.
func (s stretch) fill(answers []conversionAnswer, answer conversionAnswer) {
	for i := s.from; i < s.to; i++ {
		answers[i] = answer
	}
}

// review asks for objects together, or for one as it was asked for.
func (r *reviews) review(ctx context.Context, calls []conversionCall) (all conversionReview, answer conversionAnswer, err error) {
	first := calls[0]
	all = conversionReview{TypeMeta: first.review.TypeMeta, Request: &conversionRequest{UID: uuid.NewUUID(), DesiredAPIVersion: first.review.Request.DesiredAPIVersion}}
	for _, c := range calls {
		all.Request.Objects = append(all.Request.Objects, c.review.Request.Objects...)
	}
	body := first.body
	if len(calls) > 1 {
		if body, err = json.Marshal(all); err != nil {
			return all, answer, err
		}
	}
	answer = r.send(ctx, first.request, body)
	if answer.late = errors.Is(ctx.Err(), context.DeadlineExceeded); answer.late {
		answer.err = nil
	}
	return all, answer, nil
}

// send makes one request.
func (r *reviews) send(ctx context.Context, request *http.Request, body []byte) conversionAnswer {
	response, err := r.next.RoundTrip(withBody(ctx, request, body))
	if err != nil {
		return conversionAnswer{err: err}
	}
	defer func() { _ = response.Body.Close() }()
	a := conversionAnswer{status: response.StatusCode, header: response.Header}
	a.body, a.err = io.ReadAll(response.Body)
	return a
}

func withBody(ctx context.Context, request *http.Request, body []byte) *http.Request {
	request = request.Clone(ctx)
	request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	return request
}

// unanswered says that the webhook was not reached or did not know what to say.
func (a conversionAnswer) unanswered() bool {
	return a.err != nil || noAnswer(a.status)
}

// noAnswer are the codes of a webhook that is not there, or not now.
func noAnswer(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusNotFound, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// split makes the answers to each of those whose objects were converted together; false if
// they were not.
func (a conversionAnswer) split(all conversionReview, batch []conversionCall, answers []conversionAnswer) bool {
	var review conversionReview
	if a.err != nil || a.status != http.StatusOK || json.Unmarshal(a.body, &review) != nil || !review.answers(all) {
		return false
	}
	converted := review.Response
	if len(converted.ConvertedObjects) != len(batch) {
		return false
	}
	for i, c := range batch {
		// In another order they are not what was asked for; one by one they are.
		if !same(c.review.Request.Objects[0], converted.ConvertedObjects[i]) {
			return false
		}
		var ok bool
		if answers[i], ok = c.answer(converted.ConvertedObjects[i], converted.Result); !ok {
			return false
		}
	}
	return true
}

// same says whether two are the same object.
func same(one, other json.RawMessage) bool {
	var a, b metav1.PartialObjectMetadata
	return json.Unmarshal(one, &a) == nil && json.Unmarshal(other, &b) == nil && a.UID == b.UID
}
