package stock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/concord-dev/concord/e2e/beside"
)

// testLateCreate: a kube-apiserver gives up a create that etcd does not answer, as in a network partition. etcd
// executes the create much later: after all have agreed on another version and everything was migrated and
// proven, and directly before the pruning. etcd is the one through which b reaches etcd.
func testLateCreate(t *testing.T, a, b *beside.APIServer, etcd *holding) {
	const objects, late = 50, 50
	w := a.Define("latecreates", true, nil)
	w.Fill(objects, nil)
	prune(t, w, "never")
	etcd.hold(w.Keys() + beside.Namespace + "/" + beside.ObjectName(late))
	w.AwaitStored(beside.V1, beside.V1)
	object := w.Object(late)
	object.SetAPIVersion(beside.V1)
	path := fmt.Sprintf("/apis/%s/v1/namespaces/%s/%s", beside.Group, beside.Namespace, w.Plural)
	body, err := object.MarshalJSON()
	must(t, err)
	err = b.Kube().Discovery().RESTClient().Post().AbsPath(path).Param("timeout", "2s").SetHeader("Content-Type", "application/json").Body(body).Do(t.Context()).Error()
	if !apierrors.IsTimeout(err) {
		t.Fatalf("the create was not held: %v", err)
	}
	t.Logf("the create is given up: %v", err)
	w.Store("v2")
	w.AwaitStored(beside.V2, beside.V2)
	etcd.release()
	beside.Eventually(t, beside.Patience, "the create is done", func(ctx context.Context) error {
		counts, err := w.Stored(ctx, 0)
		if counts[beside.V1] != 1 {
			err = errors.Join(err, fmt.Errorf("stored are %v", counts))
		}
		return err
	})
	prune(t, w, "now")
	w.AwaitPruned(objects + 1)
	if err := w.TakeOut(); err != nil {
		t.Errorf("v1 cannot be taken out: %v", err)
	}
}

// holding is a proxy of a unix socket. It holds back the first request that contains a text, and all that
// follows on the same connection. When the request is released it is passed on; what follows never is.
type holding struct {
	net.Listener
	to string // its path

	text     atomic.Pointer[string] // nil if it is not given yet, or no more
	released chan struct{}
	running  sync.WaitGroup
}

func newHolding(t *testing.T, to string) *holding {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	h := &holding{Listener: listener, to: to, released: make(chan struct{})}
	h.running.Go(h.serve)
	t.Cleanup(func() { _ = listener.Close() })
	return h
}

func (h *holding) hold(text string) { h.text.Store(&text) }

func (h *holding) release() { close(h.released) }

func (h *holding) serve() {
	for {
		from, err := h.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("unix", h.to)
		if err != nil {
			_ = from.Close()
			continue
		}
		go func() {
			_ = pump(from, to, nil)
			_ = from.Close()
		}()
		go func() {
			if pump(to, from, h.held) != nil {
				return // the request was released; nothing after it goes to etcd
			}
			_ = to.Close()
		}()
	}
}

var errReleased = errors.New("released")

// held waits, at the first bytes that contain the text, until they are released.
func (h *holding) held(chunk []byte) error {
	text := h.text.Load()
	if text == nil || !bytes.Contains(chunk, []byte(*text)) || !h.text.CompareAndSwap(text, nil) {
		return nil
	}
	<-h.released
	return errReleased
}

// pump copies until the connection ends or seen returns an error; then it still copies the bytes that seen was
// given, and no more.
func pump(to, from net.Conn, seen func([]byte) error) error {
	chunk := make([]byte, 1<<16)
	for {
		n, err := from.Read(chunk)
		var end error
		if seen != nil {
			end = seen(chunk[:n])
		}
		if _, written := to.Write(chunk[:n]); end != nil || written != nil || err != nil {
			return end
		}
	}
}
