package claim

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// engine names the engine that migrates the objects, and says why it was chosen.
type engine struct {
	name   migrationv1alpha1.MigrationEngine
	reason string
}

// choose picks the engine: the store is rewritten where this server has it, which its
// report says, unless the API is asked for. elsewhere says which service serves the resource instead;
// if it is empty too, nothing here reaches the objects.
func choose(asked migrationv1alpha1.MigrationEngine, reports bool, elsewhere string) (chosen engine, ok bool) {
	switch {
	case reports && asked == migrationv1alpha1.EngineAPI:
		return engine{migrationv1alpha1.EngineAPI, "spec.engine asks for it"}, true
	case reports:
		return engine{migrationv1alpha1.EngineRewrite, "the server that migrates has the resource's store"}, true
	case elsewhere != "":
		return engine{migrationv1alpha1.EngineAPI, "the store cannot be reached: " + elsewhere}, true
	}
	return engine{}, false
}

// choose picks the engine with which this server may do the work, given the reports of the
// StorageVersion. Once chosen it stays.
func (w *work) choose(ctx context.Context, reports []agree.Report) error {
	own, reported := agree.Of(reports, w.self)
	if reported && own.Encoding != w.target.Encoding {
		reported = false
	}
	w.versions = servedVersions(w.gr, w.target.Encoding, w.m.Spec.Resource.Version, w.pin != nil && w.pin.UID != "", reports)
	var elsewhere string
	if !reported && w.c.cfg.API != nil && w.c.cfg.Elsewhere != nil {
		for _, v := range w.versions {
			var err error
			if elsewhere, err = w.c.cfg.Elsewhere(ctx, w.gr.WithVersion(v)); err != nil {
				return fmt.Errorf("ask who serves %s: %w", w.gr, err)
			}
			if elsewhere != "" {
				break
			}
		}
	}
	asked := w.m.Spec.Engine
	if w.engine.name != "" {
		asked = w.engine.name
	}
	chosen, ok := choose(asked, reported, elsewhere)
	switch {
	case !ok:
		return fmt.Errorf("%w: it does not report the resource in %s", errNotOurs, w.target.Encoding)
	case chosen.name == migrationv1alpha1.EngineAPI && w.c.cfg.API == nil:
		return fmt.Errorf("%w: it does not migrate through the API", errNotOurs)
	case w.engine.name == "":
		w.engine = chosen
	case w.engine.name != chosen.name:
		return fmt.Errorf("%w: it reaches the resource in another way than before", errNotOurs)
	}
	return nil
}

// servedVersions lists the versions in which a resource may be served, the one to patch in first: that of the
// encoding, since another may lack fields of objects that are stored in it already. Only where there is no
// CustomResourceDefinition, and a single version is served, as of a resource that is stored in an internal one, it is
// that one: all clients write through it, too.
func servedVersions(gr schema.GroupResource, e agree.Encoding, named string, defined bool, reports []agree.Report) []string {
	served, first := evolve.ServedVersions(gr, reports), e.Version()
	switch {
	case !defined && len(served) == 1:
		first = served[0]
	case len(served) == 0 && e.Group() != gr.Group:
		first = named
	}
	var versions []string
	for _, v := range append([]string{first, named}, served...) {
		if v != "" && !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
	}
	return versions
}

// rewriter is the engine's.
func (w *work) rewriter() Rewriter {
	if w.engine.name == migrationv1alpha1.EngineAPI {
		return w.c.cfg.API
	}
	return w.c.cfg.Rewriter
}
