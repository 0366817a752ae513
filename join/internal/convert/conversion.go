package convert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/utils/clock"

	migratestore "github.com/concord-dev/concord/migrate/store"
)

const (
	// maxReview bounds the objects of a call. Their bytes are bounded where objects
	// are put together: by Options.PieceBytes of package store, and by maxReviewBytes.
	maxReview = 100
	// webhookTimeout bounds a call: the library does not.
	webhookTimeout = 30 * time.Second
	// webhookAttempts is how often an object is tried that a webhook does not answer for,
	// while it answers for others.
	webhookAttempts = 4
	// webhookPatience is how long a conversion webhook may give no answer before objects
	// fail for it, and webhookProbe how often it is asked after that.
	webhookPatience = 30 * time.Second
	webhookProbe    = 5 * time.Second
	// minWebhookBackoff and maxWebhookBackoff limit the time between two calls of a webhook that does not answer.
	minWebhookBackoff = 100 * time.Millisecond
	maxWebhookBackoff = 3 * time.Second
)

// errNoAnswer says that a conversion webhook was not reached or did not return an answer. Any other error of a call is
// an answer.
var errNoAnswer = errors.New("the conversion webhook does not answer")

// webhookConversion converts stored custom resources by their definition's webhook, many in
// one call. It is used by several goroutines at once.
type webhookConversion struct {
	// convertor calls the webhook, through a transport that calls watches, once for a list.
	convertor runtime.ObjectConvertor
	calls     *webhookCalls
	encoding  schema.GroupVersion
	versions  sets.Set[string]
	clock     clock.WithTicker
	outage    outage

	mu sync.Mutex
	// most is the largest number of objects in a call: fewer after a call without an answer.
	most int
}

// newWebhookConversion returns one to the encoding.
func newWebhookConversion(crd *apiextensionsv1.CustomResourceDefinition, encoding schema.GroupVersion, convertor runtime.ObjectConvertor, calls *webhookCalls) *webhookConversion {
	w := &webhookConversion{
		convertor: convertor, calls: calls, encoding: encoding, versions: sets.New[string](),
		clock: clock.RealClock{}, outage: outage{patience: webhookPatience}, most: maxReview,
	}
	for _, v := range crd.Spec.Versions {
		w.versions.Insert(schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}.String())
	}
	return w
}

// convert is migratestore.Target.Convert.
func (w *webhookConversion) convert(ctx context.Context, plains [][]byte, hindered func(error)) []migratestore.Converted {
	result := make([]migratestore.Converted, len(plains))
	var objects []unstructured.Unstructured
	var places []int // of the objects among the plaintexts
	for i, plain := range plains {
		object, err := w.decode(plain)
		if err != nil {
			result[i] = migratestore.Converted{Reason: migratestore.Undecodable, Err: err}
			continue
		}
		objects, places = append(objects, *object), append(places, i)
	}
	for n, c := range w.together(ctx, objects, hindered) {
		result[places[n]] = c
	}
	return result
}

func (w *webhookConversion) decode(plain []byte) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	if err := Decode(plain, object); err != nil {
		return nil, err
	}
	if from := object.GetAPIVersion(); !w.versions.Has(from) {
		return nil, fmt.Errorf("the definition has no version %q", from)
	}
	return object, nil
}

// together converts objects in as few calls as possible, and finds the objects that the webhook refuses: a set that it
// does not accept as a whole is divided.
func (w *webhookConversion) together(ctx context.Context, objects []unstructured.Unstructured, hindered func(error)) []migratestore.Converted {
	if len(objects) == 0 {
		return nil
	}
	if most := w.bound(); len(objects) > most {
		return append(w.together(ctx, objects[:most], hindered), w.together(ctx, objects[most:], hindered)...)
	}
	before := (&unstructured.UnstructuredList{Items: objects}).DeepCopy().Items // the call may change its argument
	converted, divide, err := w.call(ctx, objects, hindered)
	switch {
	case err == nil:
		for i := range converted[:min(len(converted), len(before))] {
			keepNumbers(before[i].Object, converted[i].Object)
		}
		return w.encoded(converted)
	case divide && len(objects) > 1:
		half := len(objects) / 2
		return append(w.together(ctx, objects[:half], hindered), w.together(ctx, objects[half:], hindered)...)
	}
	result := make([]migratestore.Converted, len(objects))
	for i := range result {
		result[i] = migratestore.Converted{Reason: migratestore.Unconverted, Err: err}
	}
	return result
}

func (w *webhookConversion) encoded(objects []unstructured.Unstructured) []migratestore.Converted {
	result := make([]migratestore.Converted, len(objects))
	for i := range objects {
		if err := (storage.APIObjectVersioner{}).PrepareObjectForStorage(&objects[i]); err != nil {
			result[i] = migratestore.Converted{Reason: migratestore.Undecodable, Err: err}
			continue
		}
		plain, err := runtime.Encode(unstructured.UnstructuredJSONScheme, &objects[i])
		result[i] = migratestore.Converted{Plain: plain, Reason: migratestore.Unencodable, Err: err}
	}
	return result
}

// call converts objects in one call. With an error it reports whether fewer objects may succeed, because one of them
// may be refused, be too slow to convert, or crash the webhook. A single object is tried again while the webhook
// answers no call at all, for a limited time; hindered is called for each such failure, and with nil for each answer.
func (w *webhookConversion) call(ctx context.Context, objects []unstructured.Unstructured, hindered func(error)) (converted []unstructured.Unstructured, divide bool, err error) {
	list := &unstructured.UnstructuredList{Items: objects}
	list.SetAPIVersion(w.encoding.String())
	list.SetKind(objects[0].GetKind() + "List")
	if err := w.outage.pass(w.clock.Now()); err != nil {
		return nil, false, err
	}
	answers := w.outage.answered()
	for attempt, backoff := 1, minWebhookBackoff; ; attempt, backoff = attempt+1, min(2*backoff, maxWebhookBackoff) {
		before := w.calls.unanswered()
		converted, err := w.convertor.ConvertToVersion(list, w.encoding)
		now := w.calls.unanswered()
		if err == nil || now.all == before.all {
			w.outage.end()
			w.grow()
			hindered(nil)
			return itemsOf(converted), err != nil, err
		}
		if ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
		err = fmt.Errorf("%w: %w", errNoAnswer, err)
		hindered(err)
		if len(objects) > 1 && now.late > before.late {
			w.outage.lasts(w.clock.Now(), err)
			w.shrink(1) // whether it answers at all is not found out half by half, each of which takes as long
			return nil, true, err
		}
		w.shrink(len(objects))
		if !w.outage.lasts(w.clock.Now(), err) || attempt >= webhookAttempts && w.outage.answered() != answers {
			return nil, false, err
		}
		timer := w.clock.NewTimer(backoff)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil, false, ctx.Err()
		}
		if len(objects) > 1 {
			return nil, true, err
		}
	}
}

func itemsOf(converted runtime.Object) []unstructured.Unstructured {
	if list, ok := converted.(*unstructured.UnstructuredList); ok {
		return list.Items
	}
	return nil
}

func (w *webhookConversion) bound() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most
}

func (w *webhookConversion) shrink(objects int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = max(1, min(w.most, objects/2))
}

func (w *webhookConversion) grow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = min(2*w.most, maxReview)
}

// outage is the time in which a webhook has given no answer. Once that is longer than the
// patience, it is only asked from time to time whether it answers again.
type outage struct {
	patience time.Duration

	mu      sync.Mutex
	since   time.Time // zero: it answers
	probe   time.Time // when it is asked again, once the patience is at its end
	last    error
	answers int
}

// answered is how many calls were answered.
func (o *outage) answered() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.answers
}

// pass says whether the webhook may be called; the error is why not.
func (o *outage) pass(now time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() || now.Sub(o.since) <= o.patience {
		return nil
	}
	if now.Before(o.probe) {
		return o.last
	}
	o.probe = now.Add(webhookProbe)
	return nil
}

// lasts takes in a call without an answer, and says whether another is worth waiting for.
func (o *outage) lasts(now time.Time, err error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since = now
	}
	o.last = err
	return now.Sub(o.since) <= o.patience
}

func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since, o.last = time.Time{}, nil
	o.answers++
}

// webhookCalls watches the calls of one migration, which the conversion library makes
// without a context and whose errors it turns to text.
type webhookCalls struct {
	ctx     context.Context // ends the calls; it is that of the one rewrite they are made for
	timeout time.Duration   // of a call

	mu  sync.Mutex
	now unanswered
}

// unanswered counts calls without an answer. Late ones among them took too long.
type unanswered struct{ all, late int }

func (c *webhookCalls) unanswered() unanswered {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *webhookCalls) count(late bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.all++
	if late {
		c.now.late++
	}
}

// resolver wraps the resolver of webhooks, so that calls go through the transport below.
func (c *webhookCalls) resolver(wrapper webhook.AuthenticationInfoResolverWrapper) webhook.AuthenticationInfoResolverWrapper {
	return through(wrapper, func(next http.RoundTripper) http.RoundTripper { return watchedTransport{next: next, calls: c} })
}

// through has the resolver of webhooks reach them through a transport.
func through(wrapper webhook.AuthenticationInfoResolverWrapper, wrap transport.WrapperFunc) webhook.AuthenticationInfoResolverWrapper {
	wrapped := func(config *rest.Config, err error) (*rest.Config, error) {
		if err != nil {
			return nil, err
		}
		config = rest.CopyConfig(config)
		config.Wrap(wrap)
		return config, nil
	}
	return func(resolver webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		resolver = wrapper(resolver)
		return &webhook.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc: func(hostPort string) (*rest.Config, error) { return wrapped(resolver.ClientConfigFor(hostPort)) },
			ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
				return wrapped(resolver.ClientConfigForService(name, namespace, port))
			},
		}
	}
}

// noAnswer are the codes of a webhook that is not there, or not now.
func noAnswer(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusNotFound, http.StatusGatewayTimeout:
		return true
	}
	return false
}

type watchedTransport struct {
	next  http.RoundTripper
	calls *webhookCalls
}

// RoundTrip implements http.RoundTripper.
func (t watchedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(request.Context(), t.calls.timeout)
	release := context.AfterFunc(t.calls.ctx, cancel)
	response, err := t.next.RoundTrip(request.WithContext(ctx))
	if err != nil {
		release()
		cancel()
		t.calls.count(late(err))
		return nil, err
	}
	if noAnswer(response.StatusCode) { // else it says something, if only that it cannot do what it is asked for
		t.calls.count(response.StatusCode == http.StatusGatewayTimeout)
	}
	response.Body = &watchedBody{ReadCloser: response.Body, calls: t.calls, release: func() { release(); cancel() }}
	return response, nil
}

// watchedBody notices an answer that does not come to its end.
type watchedBody struct {
	io.ReadCloser
	calls   *webhookCalls
	release func()
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.calls.count(late(err))
	}
	return n, err
}

// Close implements io.Closer.
func (b *watchedBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

func late(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
