package preflight

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/api/census"
	"github.com/concord-dev/concord/compat"
)

// tellEvery is the time between two lines that report the progress of counting.
const tellEvery = 3 * time.Second

// counted has a server count the raw values of every resource that was not counted, whatever is
// remembered of it: values that cannot be read are not remembered.
func (o *options) counted(ctx context.Context, world *World) error {
	if world.Count == nil || !o.count {
		return nil
	}
	told := time.Now()
	var refusals refusals
	for i := range world.Stored {
		s := &world.Stored[i]
		if now := time.Now(); now.Sub(told) >= tellEvery {
			told = now
			fmt.Fprintf(o.complaints, "counting %s, %d of %d resources\n", s.Resource, i+1, len(world.Stored))
		}
		var err error
		s.Census, err = world.Count(ctx, s.Resource)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.Storeless = census.IsNotStored(err, s.Resource)
		refusals.add(s.Resource, err)
	}
	o.tell(refusals)
	return nil
}

// countOne is counted for one resource.
func (o *options) countOne(ctx context.Context, world *World, gr schema.GroupResource) *compat.StoredCensus {
	counted, err := world.Count(ctx, gr)
	var refusals refusals
	refusals.add(gr, err)
	o.tell(refusals)
	return counted
}

// refusals are resources that were not counted.
type refusals struct {
	resources int
	first     schema.GroupResource
	why       error
}

func (r *refusals) add(gr schema.GroupResource, err error) {
	if err == nil || census.IsNotStored(err, gr) {
		return
	}
	if r.resources++; r.resources == 1 {
		r.first, r.why = gr, err
	}
}

// tell prints, in one line, what was not counted, if anything.
func (o *options) tell(r refusals) {
	switch r.resources {
	case 0:
	case 1:
		fmt.Fprintf(o.complaints, "%s was not counted: %v\n", r.first, r.why)
	default:
		fmt.Fprintf(o.complaints, "%d resources were not counted, %s for one: %v\n", r.resources, r.first, r.why)
	}
}
