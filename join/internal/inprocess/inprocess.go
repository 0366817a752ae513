// Package inprocess carries a server's requests to itself without a connection.
package inprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// Transport carries requests to this server without a connection: to encrypt, frame
// and take apart again bytes that stay in the process costs more than a small request itself.
// They pass the same handlers as a client's, authentication first of all. An answer is
// there when it is whole, so it is not for watches.
type Transport struct {
	handler atomic.Pointer[http.Handler]
}

var _ http.RoundTripper = (*Transport)(nil)

// Serve sets the handler that answers, once it is known.
func (p *Transport) Serve(handler http.Handler) { p.handler.Store(&handler) }

// Config returns a copy of config, which names this server, that reaches it in the process.
func (p *Transport) Config(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.TLSClientConfig = rest.TLSClientConfig{}
	config.Host = "http://in-process"
	config.Transport = p
	return config
}

// RoundTrip implements http.RoundTripper.
func (p *Transport) RoundTrip(r *http.Request) (response *http.Response, err error) {
	if r.Body != nil {
		defer func() { _ = r.Body.Close() }()
	}
	handler := p.handler.Load()
	if handler == nil {
		return nil, errors.New("this server does not serve yet")
	}
	if err := context.Cause(r.Context()); err != nil {
		return nil, err
	}
	// The values in the sender's context stay with the sender: of that context the handlers see only the end.
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	defer context.AfterFunc(r.Context(), func() { cancel(context.Cause(r.Context())) })()

	w := &wholeAnswer{header: http.Header{}}
	defer func() {
		if cause := recover(); cause != nil {
			// net/http ends the connection then.
			response, err = nil, fmt.Errorf("%s %s: the handler was aborted: %v", r.Method, r.URL.Path, cause)
		}
	}()
	(*handler).ServeHTTP(w, received(ctx, r))
	if err := context.Cause(r.Context()); err != nil {
		return nil, err
	}
	return w.response(r), nil
}

// received is how a server sees the request that a client sends.
func received(ctx context.Context, sent *http.Request) *http.Request {
	r := (&http.Request{
		Method: sent.Method,
		URL:    &url.URL{Path: sent.URL.Path, RawPath: sent.URL.RawPath, RawQuery: sent.URL.RawQuery},
		Proto:  "HTTP/2.0", ProtoMajor: 2,
		Header:        sent.Header.Clone(),
		Body:          sent.Body,
		ContentLength: sent.ContentLength,
		Host:          sent.URL.Host,
		RemoteAddr:    "127.0.0.1:0",
		RequestURI:    sent.URL.RequestURI(),
	}).WithContext(ctx)
	if r.Body == nil {
		r.Body = http.NoBody
	}
	return r
}

// wholeAnswer is an http.ResponseWriter that keeps what is written.
type wholeAnswer struct {
	header, sent http.Header
	status       int
	body         bytes.Buffer
}

// Header implements http.ResponseWriter.
func (w *wholeAnswer) Header() http.Header { return w.header }

// Flush implements http.Flusher: nothing leaves before all is there. The filters take it that
// every writer can do this and be asked for CloseNotify, and the proxy to aggregated APIs
// ends the process where one cannot.
func (w *wholeAnswer) Flush() {}

// CloseNotify implements http.CloseNotifier. That the asker has gone is in the context.
func (w *wholeAnswer) CloseNotify() <-chan bool { return nil }

// WriteHeader implements http.ResponseWriter. Only the first call counts, and informational statuses (1xx) do not.
func (w *wholeAnswer) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status, w.sent = status, w.header.Clone()
	}
}

// Write implements http.ResponseWriter.
func (w *wholeAnswer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

func (w *wholeAnswer) response(to *http.Request) *http.Response {
	w.WriteHeader(http.StatusOK)
	return &http.Response{
		Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), StatusCode: w.status,
		Proto: "HTTP/2.0", ProtoMajor: 2,
		Header:        w.sent,
		Body:          io.NopCloser(&w.body),
		ContentLength: int64(w.body.Len()),
		Request:       to,
	}
}
