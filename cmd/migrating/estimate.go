package migrating

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/api/census"
)

// assumedPerSecond is how many objects are expected to be written per second where no
// server has measured it.
const assumedPerSecond = 2000

// estimate is what migrating one resource means. Its numbers are nil where nobody knows.
type estimate struct {
	Resource string `json:"resource"`
	// Elsewhere says how a resource is migrated that the server asked does not store, and
	// why its objects are not counted if they are not; empty for all that it stores.
	Elsewhere string `json:"elsewhere,omitempty"`
	// Encoding is what objects would be rewritten to, empty while servers do not agree.
	Encoding string `json:"encoding"`
	Objects  *int64 `json:"objects"`
	Bytes    *int64 `json:"bytes"`
	// Rewrite is how many of the objects are not in the encoding.
	Rewrite   *int64        `json:"rewrite"`
	Encodings []encodingRow `json:"encodings"`
	// ExpectedSeconds are for reading all objects and rewriting those. ObjectsPerSecond is
	// the speed they are computed with, Basis what that is: measured, assumed, limited or
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

// estimate asks a server for a census of each resource and prints what it means.
func (o *migrateOptions) estimate(ctx context.Context, config *rest.Config, cluster client.Client, resources []schema.GroupResource, out io.Writer) error {
	served, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	estimates := []estimate{}
	for _, gr := range resources {
		var e estimate
		counted, err := CensusOf(ctx, served, gr)
		switch {
		case err == nil:
			e = o.of(*counted)
		case census.IsNotStored(err, gr):
			e, err = elsewhere(ctx, config, cluster, gr)
		}
		if err != nil {
			return fmt.Errorf("the cluster at %s: census of %s: %w", config.Host, gr, err)
		}
		estimates = append(estimates, e)
	}
	return Printed(out, o.output, estimates, func() string { return estimateTable(estimates) })
}

// TakeCensus is CensusOf for who has no client yet.
func TakeCensus(ctx context.Context, config *rest.Config, gr schema.GroupResource) (*census.Resource, error) {
	served, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	return CensusOf(ctx, served, gr)
}

// CensusOf asks a server for a census of a resource.
func CensusOf(ctx context.Context, served discovery.DiscoveryInterface, gr schema.GroupResource) (*census.Resource, error) {
	result := served.RESTClient().Get().AbsPath(census.Path + gr.String()).Do(ctx)
	// Unlike that of Raw, this error says what the server says.
	if err := result.Error(); err != nil {
		return nil, err
	}
	raw, err := result.Raw()
	if err != nil {
		return nil, err
	}
	counted := &census.Resource{}
	return counted, json.Unmarshal(raw, counted)
}

// of computes what a census means for a migration with these options.
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

func estimateTable(estimates []estimate) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "RESOURCE\tSTORED AS\tOBJECTS\tBYTES\tTO REWRITE\tENCODING\tEXPECTED")
	assumed, rewrites := false, false
	for _, e := range estimates {
		to := cmp.Or(e.Encoding, "not agreed")
		if e.Elsewhere != "" {
			fmt.Fprintf(w, "%s\telsewhere\t%s\t-\t-\t%s\t-\n", e.Resource, orDash(e.Objects), to)
			continue
		}
		expected := time.Duration(*e.ExpectedSeconds * float64(time.Second)).Round(time.Second)
		rows := e.Encodings
		if len(rows) == 0 {
			rows = []encodingRow{{Encoding: "-"}}
		}
		for i, row := range rows {
			rewrite, took := "", ""
			if i == 0 {
				rewrite, took = fmt.Sprint(*e.Rewrite), max(expected, time.Second).String()
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", e.Resource, row.Encoding, row.Objects, row.Bytes, rewrite, to, took)
		}
		rewrites = rewrites || *e.Rewrite > 0
		assumed = assumed || e.Basis == "assumed" && *e.Rewrite > 0
	}
	_ = w.Flush() // a strings.Builder takes everything
	if assumed {
		fmt.Fprintf(&text, "\nThe server asked has not rewritten anything yet: %d objects per second are assumed.\n", assumedPerSecond)
	}
	if rewrites {
		fmt.Fprint(&text, "\nWhile clients are served a migration gives way to them, and takes longer.\n")
	}
	for _, e := range estimates {
		if e.Elsewhere != "" {
			fmt.Fprintf(&text, "\n%s is stored elsewhere: %s. Its bytes and encodings, and how long it takes, are not known here.\n", e.Resource, e.Elsewhere)
		}
	}
	return text.String()
}

// Printed writes rows in the format that -o names.
func Printed(w io.Writer, output string, rows any, table func() string) error {
	switch output {
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(rows)
	case "table":
		_, err := fmt.Fprint(w, table())
		return err
	default:
		return fmt.Errorf("-o %s: allowed are table and json", output)
	}
}
