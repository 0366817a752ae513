package stock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/stock/observed"
	"github.com/concord-dev/concord/testbed/ledger"
)

// under is a request that a kube-apiserver has begun to serve, and whose body has not been sent yet.
type under struct {
	body  *io.PipeWriter
	ended chan error
}

// deleting begins to delete an object through a server. When the server asks for the request's
// body, it has chosen the version in which it will store. A delete of a collection is the only
// request that writes and may take as long as the server's --request-timeout says; it writes the
// object if that has a finalizer.
func deleting(w *beside.Widgets, s *beside.APIServer, i int) *under {
	t := w.Server.Cluster.T
	t.Helper()
	secure, err := rest.TLSConfigFor(s.Config())
	must(t, err)
	transport := &http.Transport{TLSClientConfig: secure, ExpectContinueTimeout: beside.Patience}
	t.Cleanup(transport.CloseIdleConnections)
	asked := make(chan struct{})
	ctx, cancel := context.WithCancel(httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{Got100Continue: func() { close(asked) }}))
	body, writer := io.Pipe()
	url := fmt.Sprintf("%s/apis/%s/v1/namespaces/%s/%s?fieldSelector=metadata.name=%s", s.Config().Host, beside.Group, beside.Namespace, w.Plural, beside.ObjectName(i))
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete, url, struct{ io.Reader }{body})
	must(t, err)
	request.ContentLength = int64(len(deleteOptions))
	request.Header = http.Header{"Authorization": {"Bearer " + beside.AdminToken}, "Content-Type": {"application/json"}, "Expect": {"100-continue"}}
	u := &under{body: writer, ended: make(chan error, 1)}
	go func() {
		response, err := transport.RoundTrip(request)
		if err == nil {
			var answer []byte
			if answer, err = io.ReadAll(response.Body); err == nil && response.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s: %s", response.Status, answer)
			}
			_ = response.Body.Close()
		}
		u.ended <- err
	}()
	t.Cleanup(func() {
		_ = writer.CloseWithError(context.Canceled)
		cancel()
	})
	select {
	case <-asked:
	case err := <-u.ended:
		t.Fatalf("the request ended before it was sent: %v", err)
	}
	return u
}

const deleteOptions = `{"apiVersion":"v1","kind":"DeleteOptions"}`

// send sends the body of the request, which a paused server reads when it goes on.
func (u *under) send() error {
	_, err := io.WriteString(u.body, deleteOptions)
	return errors.Join(err, u.body.Close())
}

// testPausedInWrite: a kube-apiserver is paused in the middle of a write that it began before the
// storage version changed, and after that all agreed and everything was migrated and proven. While
// it is paused, v1 counts as stored again and nothing is pruned. The object that it writes in v1
// when it is resumed is migrated before v1 is pruned.
func testPausedInWrite(t *testing.T, a, b *beside.APIServer) {
	const objects, late = 5000, 7
	w := a.Define("lateputs", true, nil)
	w.Fill(objects, func(i int, w *unstructured.Unstructured) {
		if i == late {
			w.SetFinalizers([]string{beside.Group + "/stays"})
		}
	})
	prune(t, w, "never")
	w.AwaitStored(beside.V1, beside.V1)
	u := deleting(w, b, late)
	w.Store("v2")
	w.AwaitStored(beside.V2, beside.V2)
	if counts, err := w.Stored(t.Context(), 0); err != nil || counts[beside.V2] != objects {
		t.Fatalf("stored are %v, %v", counts, err)
	}
	b.Pause()
	prune(t, w, "now")
	beside.Eventually(t, beside.Patience, "v1 counts as stored, and nothing is agreed on", func(ctx context.Context) error {
		state, err := w.State(ctx)
		if err != nil {
			return err
		}
		if s := state.Status; s.CurrentEncoding != migrationv1alpha1.Unknown || !strings.Contains(s.Message, "does not answer") || !slices.Contains(s.PersistedEncodings, beside.V1) {
			return fmt.Errorf("the state is %+v", s)
		}
		return nil
	})
	if versions, err := w.StoredVersions(t.Context()); err != nil || !slices.Equal(versions, []string{"v1", "v2"}) {
		t.Errorf("storedVersions are %v, %v", versions, err)
	}
	puts := putsIn(w, beside.V1)
	must(t, u.send())
	b.Resume()
	if err := <-u.ended; err != nil {
		t.Fatalf("the write did not go on: %v", err)
	}
	w.AwaitPruned(objects)
	if n := puts(); n != 1 {
		t.Errorf("%d objects were written in v1 meanwhile, want 1: nothing was tested", n)
	}
	if err := w.TakeOut(); err != nil {
		t.Errorf("v1 cannot be taken out: %v", err)
	}
}

// putsIn counts the puts in a version from now until the function that it returns is called.
func putsIn(w *beside.Widgets, version string) func() int {
	t, etcd := w.Server.Cluster.T, w.Server.Cluster.Raw
	t.Helper()
	stop, err := ledger.Record(t.Context(), etcd, w.Keys())
	must(t, err)
	return func() (n int) {
		t.Helper()
		events, err := stop(t.Context())
		must(t, err)
		for _, e := range events {
			if strings.HasPrefix(string(e.Value), `{"apiVersion":"`+version+`"`) { // managedFields name versions, too
				n++
			}
		}
		return n
	}
}

// prune sets the annotation of the CRD that says when its storedVersions are pruned.
func prune(t *testing.T, w *beside.Widgets, when string) {
	t.Helper()
	if err := w.Change(func(crd *apiextensionsv1.CustomResourceDefinition) {
		metav1.SetMetaDataAnnotation(&crd.ObjectMeta, observed.PruneAnnotation, when)
	}); err != nil {
		t.Fatal(err)
	}
}
