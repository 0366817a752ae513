package migrating

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/mitchellh/go-wordwrap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/api/census"
	"github.com/concord-dev/concord/cmd/program"
)

// assumedPerSecond is how many objects are expected to be written per second where no
// server has measured it.
const assumedPerSecond = 2000

// estimate is the expected work of migrating one resource. Numbers that are not known are nil.
type estimate struct {
	Resource string `json:"resource"`
	// Elsewhere says why nothing is counted of a resource; empty for all that the server asked stores.
	Elsewhere string `json:"elsewhere,omitempty"`
	// Encoding is the encoding to which objects would be rewritten; empty while servers do not agree, and if Elsewhere.
	Encoding string `json:"encoding"`
	Objects  *int64 `json:"objects"`
	Bytes    *int64 `json:"bytes"`
	// Rewrite is how many of the objects are not in the encoding.
	Rewrite   *int64        `json:"rewrite"`
	Encodings []encodingRow `json:"encodings"`
	// ExpectedSeconds are for reading all objects and rewriting those. ObjectsPerSecond is
	// the speed they are computed with, Basis its kind: measured, assumed, limited or
	// unknown.
	ExpectedSeconds  *float64 `json:"expectedSeconds"`
	ObjectsPerSecond *float64 `json:"objectsPerSecond"`
	Basis            string   `json:"basis"`
}

type encodingRow struct {
	Encoding string `json:"encoding"`
	Objects  int64  `json:"objects"`
	Bytes    int64  `json:"bytes"`
}

// estimate asks a server for a census of each resource and prints the estimates.
func (o *migrateOptions) estimate(ctx context.Context, config *rest.Config, resources []schema.GroupResource, out io.Writer) error {
	estimates := []estimate{}
	for _, gr := range resources {
		var e estimate
		counted, err := TakeCensus(ctx, config, gr, Envelopes)
		switch {
		case err == nil:
			e = o.of(*counted)
		case census.IsNotStored(err, gr):
			e, err = estimate{Resource: gr.String(), Elsewhere: "the server asked does not store it", Encodings: []encodingRow{}, Basis: "unknown"}, nil
		}
		if err != nil {
			return fmt.Errorf("the cluster at %s: census of %s: %w", config.Host, gr, err)
		}
		estimates = append(estimates, e)
	}
	return Printed(out, o.output, estimates, func() string { return estimateTable(estimates) })
}

// Reading is how far a census reads values.
type Reading bool

const (
	// Envelopes reads the version that a value names, without decoding the value.
	Envelopes Reading = false
	// Decoded decodes each value, too.
	Decoded Reading = true
)

// ErrNoCensus is the error of kube-apiservers without Concord, or with the gate StorageVersionAPI off.
var ErrNoCensus = errors.New("the kube-apiserver that answered takes no census (it is one without Concord, or its gate StorageVersionAPI is off): ask one of Concord by --server, if kubectl concord status names any, or count etcd by kubectl concord census --etcd-servers")

// TakeCensus asks a server for a census of a resource.
func TakeCensus(ctx context.Context, config *rest.Config, gr schema.GroupResource, how Reading) (*census.Resource, error) {
	served, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	request := served.RESTClient().Get().AbsPath(census.Path + gr.String())
	if how == Decoded {
		request.Param(census.VerifyParameter, "true")
	}
	result := request.Do(ctx)
	// Unlike Raw's error, this one contains the server's message.
	switch err := result.Error(); {
	case apierrors.IsNotFound(err) && !census.IsNotStored(err, gr):
		return nil, ErrNoCensus
	case err != nil:
		return nil, err
	}
	raw, err := result.Raw()
	if err != nil {
		return nil, err
	}
	counted := &census.Resource{}
	return counted, json.Unmarshal(raw, counted)
}

// of computes the estimate for a migration with these options from a census.
func (o *migrateOptions) of(c census.Resource) estimate {
	e := estimate{Resource: c.Resource, Encoding: c.Encoding, Encodings: []encodingRow{}, Basis: "measured"}
	var objects, bytes, rewrite int64
	for _, row := range c.Rows {
		objects += row.Objects
		bytes += row.Bytes
		if row.Encoding != c.Encoding {
			rewrite += row.Objects
		}
		e.Encodings = append(e.Encodings, encodingRow{row.Encoding, row.Objects, row.Bytes})
	}
	rate := c.ObjectsPerSecond
	if rate <= 0 {
		rate, e.Basis = assumedPerSecond, "assumed"
	}
	limit := float64(c.MaxObjectsPerSecond)
	if o.rateSet {
		limit = float64(o.maxPerSecond)
	}
	if limit > 0 && limit < rate {
		rate, e.Basis = limit, "limited"
	}
	e.Objects, e.Bytes, e.Rewrite = &objects, &bytes, &rewrite
	e.ObjectsPerSecond, e.ExpectedSeconds = &rate, ptr.To(c.ReadSeconds+float64(rewrite)/rate)
	return e
}

// estimateTable has the resource in a line of its own, and under it the encodings that it is
// stored in: names are too long to stand beside the rest.
func estimateTable(estimates []estimate) string {
	var text strings.Builder
	assumed, rewrites, empty := false, false, 0
	for _, e := range estimates {
		switch {
		case e.Elsewhere != "":
			fmt.Fprintf(&text, "%s\n  %9s objects: %s\n", e.Resource, "-", e.Elsewhere)
			continue
		case len(e.Encodings) == 0:
			empty++
			continue
		}
		expected := time.Duration(*e.ExpectedSeconds * float64(time.Second)).Round(time.Second)
		fmt.Fprintf(&text, "%s\n  %9d to rewrite to %s, in %s\n", e.Resource, *e.Rewrite, cmp.Or(e.Encoding, "what servers will agree on"), max(expected, time.Second))
		for _, row := range e.Encodings {
			fmt.Fprintf(&text, "  %9d objects  %12d bytes  %s\n", row.Objects, row.Bytes, row.Encoding)
		}
		rewrites = rewrites || *e.Rewrite > 0
		assumed = assumed || e.Basis == "assumed" && *e.Rewrite > 0
	}
	if empty > 0 {
		fmt.Fprintf(&text, "nothing is stored of %d resources\n", empty)
	}
	if assumed {
		text.WriteString(paragraph(fmt.Sprintf("The server asked has not rewritten anything yet: %d objects per second are assumed.", assumedPerSecond)))
	}
	if rewrites {
		text.WriteString(paragraph("While clients are served a migration gives way to them, and takes longer."))
	}
	return text.String()
}

// paragraph is text in lines of 80 columns, behind an empty line.
func paragraph(text string) string { return "\n" + wordwrap.WrapString(text, 80) + "\n" }

// Printed writes rows in the format that -o names.
func Printed(w io.Writer, output string, rows any, table func() string) error {
	switch output {
	case "json":
		return program.PrintJSON(w, rows)
	case "table":
		_, err := fmt.Fprint(w, table())
		return err
	default:
		return fmt.Errorf("-o %s: allowed are table and json", output)
	}
}
