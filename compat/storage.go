package compat

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
)

// storageVersions picks the storage version of every resource; empty for one that is not persisted or that the binary has no type for.
// The error names the resources without one and the min compatibility versions that would do.
func storageVersions(resources [][]Lifecycle, o Options) ([]schema.GroupVersion, error) {
	picked, missing := pick(resources, o.MinCompatibility, o.Emulation)
	if len(missing) == 0 {
		return picked, nil
	}
	var allowed []*version.Version
	for _, m := range AllowedMinCompatibility(o.Binary, o.Emulation) {
		if _, missing := pick(resources, m, o.Emulation); len(missing) == 0 {
			allowed = append(allowed, m)
		}
	}
	return nil, flagError("min-compatibility-version", o.MinCompatibility.String(), fmt.Sprintf(
		"with emulation version %s no version of %s can be decoded by every release from %s to %s",
		o.Emulation, strings.Join(missing, ", "), o.MinCompatibility, o.Emulation.AddMinor(1)), allowed)
}

func pick(resources [][]Lifecycle, minCompatibility, emulation *version.Version) (picked []schema.GroupVersion, missing []string) {
	picked = make([]schema.GroupVersion, len(resources))
	for i, rows := range resources {
		persisted := !slices.ContainsFunc(rows, func(l Lifecycle) bool { return l.NotPersisted })
		if !persisted || !slices.ContainsFunc(rows, hasType) {
			continue
		}
		v, ok := storageVersion(rows, minCompatibility, emulation)
		if !ok {
			missing = append(missing, rows[0].GroupResource().String())
			continue
		}
		picked[i] = schema.GroupVersion{Group: rows[0].Group, Version: v}
	}
	return picked, missing
}

// storageVersion is the newest version that every release in the window which knows the resource can decode
// (KEP-4330, StorageVersion Compatibility Versioning). Rows are newest first. False: there is none.
//
// Alpha versions promise no compatibility, so they neither count as knowing the resource nor are chosen, unless there is nothing else.
func storageVersion(rows []Lifecycle, minCompatibility, emulation *version.Version) (string, bool) {
	if lasting := slices.DeleteFunc(slices.Clone(rows), isAlpha); slices.ContainsFunc(lasting, hasType) {
		rows = lasting
	}
	readers := readers(rows, releases(minCompatibility, emulation.AddMinor(1)))
	for _, l := range rows {
		if !l.Gone && !slices.ContainsFunc(readers, func(r *version.Version) bool { return !l.decodedBy(r) }) {
			return l.Version, true
		}
	}
	return "", false
}

// readers are the releases in the window that know the resource. When none does, they are the last release before it that did, or else
// the first one after it that will: the neighbour a cluster comes from or goes to.
// Taking the last before the first is what keeps a storage version from getting older when min compatibility is raised.
func readers(rows []Lifecycle, window []*version.Version) []*version.Version {
	var in []*version.Version
	for _, r := range window {
		if slices.ContainsFunc(rows, func(l Lifecycle) bool { return l.decodedBy(r) }) {
			in = append(in, r)
		}
	}
	if len(in) > 0 {
		return in
	}
	var before, after *version.Version
	for _, l := range rows {
		switch {
		case l.Gone:
		case l.removedBy(window[0]):
			if last := l.Removed.SubtractMinor(1); before == nil || last.GreaterThan(before) {
				before = last
			}
		case after == nil || l.Introduced.LessThan(after): // neither in the window nor before it, so introduced after it
			after = l.Introduced
		}
	}
	if before != nil {
		return []*version.Version{before}
	}
	return []*version.Version{after}
}

func hasType(l Lifecycle) bool { return !l.Gone }
