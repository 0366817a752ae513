package stored

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/rewrite"
)

// CensusPath, with the name of a resource behind it ("widgets.example.com"), answers a GET
// with that resource's ResourceCensus. Only who may get that path may ask: system:masters,
// until others are allowed to. Every value is read, so that it takes a while.
const CensusPath = "/concord/census/"

// ResourceCensus counts the stored objects of one resource, from raw etcd.
type ResourceCensus struct {
	Resource string `json:"resource"`
	// Encoding is what all servers agree on, empty if they do not.
	Encoding string `json:"encoding"`
	// Rows are sorted by encoding. Their resource is this one.
	Rows []rewrite.Row `json:"rows"`
	// ReadSeconds is how long it took to read all of them.
	ReadSeconds float64 `json:"readSeconds"`
	// ObjectsPerSecond is how fast the server's last rewrite of at least a thousand objects
	// wrote, of whatever resource; 0 if it did none since it started.
	ObjectsPerSecond float64 `json:"objectsPerSecond"`
	// MaxObjectsPerSecond is what the server allows a migration that says nothing itself; 0
	// is no bound.
	MaxObjectsPerSecond int `json:"maxObjectsPerSecond"`
}

// Count counts the values under prefix into the rows. transformer opens them, and seal says
// what an encrypted one is encrypted with. With an error the rows are what it counted so far.
func (c *ResourceCensus) Count(ctx context.Context, reader rewrite.Reader, prefix string, transformer value.Transformer, seal func([]byte) agree.Seal) error {
	began := time.Now()
	rows := map[string]*rewrite.Row{}
	err := rewrite.Walk(ctx, reader, prefix, func(e rewrite.Entry) error {
		encoding := encodingOf(ctx, e, transformer, seal)
		if rows[encoding] == nil {
			rows[encoding] = &rewrite.Row{Resource: c.Resource, Encoding: encoding}
		}
		rows[encoding].Objects++
		rows[encoding].Bytes += int64(len(e.Value))
		return nil
	})
	c.ReadSeconds = time.Since(began).Seconds()
	for _, row := range rows {
		c.Rows = append(c.Rows, *row)
	}
	slices.SortFunc(c.Rows, func(a, b rewrite.Row) int { return strings.Compare(a.Encoding, b.Encoding) })
	return err
}

// encodingOf is what a stored value says that it is encoded in, and encrypted with.
func encodingOf(ctx context.Context, e rewrite.Entry, transformer value.Transformer, seal func([]byte) agree.Seal) string {
	if encoding, _, ok := rewrite.Envelope(e.Value); ok {
		return string(encoding)
	}
	if plain, _, err := transformer.TransformFromStorage(ctx, e.Value, value.DefaultContext(e.Key)); err == nil {
		if encoding, _, ok := rewrite.Envelope(plain); ok {
			return string(encoding.Sealed(seal(e.Value)))
		}
	}
	return rewrite.EncodingUnknown
}

// censuses is what the answer that a server has no census of a resource says is not found.
var censuses = schema.GroupResource{Group: "concord.dev", Resource: "census"}

// NotStored is the error with which CensusPath says that the server has no store of the
// resource.
func NotStored(gr schema.GroupResource) error { return apierrors.NewNotFound(censuses, gr.String()) }

// IsNotStored tells the error with which CensusPath says that the server has no store of the
// resource from all others, also from a 404 of a server that takes no censuses.
func IsNotStored(err error, gr schema.GroupResource) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	d := status.Status().Details
	return d != nil && d.Group == censuses.Group && d.Kind == censuses.Resource && d.Name == gr.String()
}
