package compat

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
)

// storageVersions returns the storage version of every resource; empty if the resource is not persisted or the binary
// has no type for it. The error names the resources without a possible storage version, and the min compatibility
// versions that would work.
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

// readers returns the releases in the window that know the resource. If there is none, it returns the last earlier
// release that knew it, or else the first later one that will: the neighbour that a cluster comes from or goes to.
// Taking the last earlier one first keeps the storage version from getting older when min compatibility is raised.
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
