package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/server"
)

// assumedPerSecond is how many objects are expected to be written per second where no
// server has measured it.
const assumedPerSecond = 2000

// estimate is what migrating one resource means.
type estimate struct {
	Resource string `json:"resource"`
	// Encoding is what objects would be rewritten to, empty while servers do not agree.
	Encoding string `json:"encoding"`
	Objects  int64  `json:"objects"`
	Bytes    int64  `json:"bytes"`
	// Rewrite is how many of the objects are not in the encoding.
	Rewrite   int64         `json:"rewrite"`
	Encodings []encodingRow `json:"encodings"`
	// ExpectedSeconds are for reading all objects and rewriting those. ObjectsPerSecond is
	// the speed they are computed with, Basis what that is: measured, assumed or limited.
	ExpectedSeconds  float64 `json:"expectedSeconds"`
	ObjectsPerSecond float64 `json:"objectsPerSecond"`
	Basis            string  `json:"basis"`
}

type encodingRow struct {
	Encoding string `json:"encoding"`
	Objects  int64  `json:"objects"`
	Bytes    int64  `json:"bytes"`
}

// estimate asks a server for a census of each resource and prints what it means.
func (o *migrateOptions) estimate(ctx context.Context, config *rest.Config, resources []schema.GroupResource, out io.Writer) error {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	estimates := []estimate{}
	for _, gr := range resources {
		raw, err := kube.Discovery().RESTClient().Get().AbsPath(server.CensusPath + gr.String()).DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("the cluster at %s: census of %s: %w", config.Host, gr, err)
		}
		var census server.ResourceCensus
		if err := json.Unmarshal(raw, &census); err != nil {
			return fmt.Errorf("the cluster at %s: census of %s: %w", config.Host, gr, err)
		}
		estimates = append(estimates, o.of(census))
	}
	return printed(out, o.output, estimates, func() string { return estimateTable(estimates) })
}

// of computes what a census means for a migration with these options.
func (o *migrateOptions) of(c server.ResourceCensus) estimate {
	e := estimate{Resource: c.Resource, Encoding: c.Encoding, Encodings: []encodingRow{}, ObjectsPerSecond: c.ObjectsPerSecond, Basis: "measured"}
	for _, row := range c.Rows {
		e.Objects += row.Objects
		e.Bytes += row.Bytes
		if row.Encoding != c.Encoding {
			e.Rewrite += row.Objects
		}
		e.Encodings = append(e.Encodings, encodingRow{row.Encoding, row.Objects, row.Bytes})
	}
	if e.ObjectsPerSecond <= 0 {
		e.ObjectsPerSecond, e.Basis = assumedPerSecond, "assumed"
	}
	limit := float64(c.MaxObjectsPerSecond)
	if o.rateSet {
		limit = float64(o.maxPerSecond)
	}
	if limit > 0 && limit < e.ObjectsPerSecond {
		e.ObjectsPerSecond, e.Basis = limit, "limited"
	}
	e.ExpectedSeconds = c.ReadSeconds + float64(e.Rewrite)/e.ObjectsPerSecond
	return e
}

func estimateTable(estimates []estimate) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "RESOURCE\tSTORED AS\tOBJECTS\tBYTES\tTO REWRITE\tENCODING\tEXPECTED")
	assumed := false
	for _, e := range estimates {
		expected := (time.Duration(e.ExpectedSeconds * float64(time.Second))).Round(time.Second)
		to := e.Encoding
		if to == "" {
			to = "not agreed"
		}
		rows := e.Encodings
		if len(rows) == 0 {
			rows = []encodingRow{{Encoding: "-"}}
		}
		for i, row := range rows {
			rewrite, took := "", ""
			if i == 0 {
				rewrite, took = fmt.Sprint(e.Rewrite), max(expected, time.Second).String()
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", e.Resource, row.Encoding, row.Objects, row.Bytes, rewrite, to, took)
		}
		assumed = assumed || e.Basis == "assumed" && e.Rewrite > 0
	}
	_ = w.Flush() // a strings.Builder takes everything
	if assumed {
		fmt.Fprintf(&text, "\nThe server asked has not rewritten anything yet: %d objects per second are assumed.\n", assumedPerSecond)
	}
	return text.String()
}
