package api

import (
	"cmp"
	"context"
	"io"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// FirstPage is how many objects the first page of a list has, as long as nothing is known of their size.
	FirstPage = 25
	// pageBytes is about how large a page of several objects may be. It is in memory twice while it is decoded.
	pageBytes = 2 << 20
	// mostBytes is how much of a page of several objects a Client reads before it asks for fewer.
	mostBytes = 2 * pageBytes
)

// nextPage returns how many objects to ask for after a page, at most most: twice as many as the page has, or fewer if
// a page of such objects would be larger than about 2 MiB.
func nextPage(page *metav1.PartialObjectMetadataList, most int) int {
	objects := len(page.Items)
	return max(1, min(2*objects, objects*pageBytes/cmp.Or(page.Size(), 1), most))
}

// cutKey is the key in a request's context for a *bool that becomes true if its answer was cut.
type cutKey struct{}

// cutting cuts the answers of requests that have a cutKey behind mostBytes: large objects may stand behind
// small ones, and a page of many of them take more memory than there is.
type cutting struct{ http.RoundTripper }

func (c cutting) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.RoundTripper.RoundTrip(r)
	if cut, ok := r.Context().Value(cutKey{}).(*bool); ok && err == nil {
		answer.Body = &cutBody{ReadCloser: answer.Body, left: mostBytes, cut: cut}
	}
	return answer, err
}

type cutBody struct {
	io.ReadCloser
	left int
	cut  *bool
}

func (b *cutBody) Read(into []byte) (int, error) {
	if b.left == 0 {
		*b.cut = true
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(into[:min(len(into), b.left)])
	b.left -= n
	return n, err
}

// withCut allows the answer of a request to be cut. The result says whether it was.
func withCut(ctx context.Context) (context.Context, *bool) {
	cut := new(bool)
	return context.WithValue(ctx, cutKey{}, cut), cut
}
