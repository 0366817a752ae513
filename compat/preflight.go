package compat

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
)

// Safety answers whether a server may start with the objects stored in etcd (KEP-2343, Implications to cluster operators).
type Safety int

const (
	// CouldNotTell is the zero value.
	CouldNotTell Safety = iota
	// Safe: the server decodes everything that may be stored, or never reads it.
	Safe
	// Unsafe: something may be stored that the server cannot decode.
	Unsafe
)

// String names the verdict.
func (s Safety) String() string { return [...]string{"unknown", "safe", "unsafe"}[s] }

// MarshalText implements encoding.TextMarshaler.
func (s Safety) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Stored lists the encodings in which objects of one resource may be stored, and how that is known.
type Stored struct {
	Resource schema.GroupResource
	// Encodings are the group/versions that stored objects may have, as it is remembered.
	Encodings []string
	// Unknown says that they may have others too.
	Unknown bool
	// Reported are the group/versions that servers write: objects may have them a moment after
	// a census that found none.
	Reported []string
	// Undecodable counts the objects that a migration found to be unreadable, and names the first. It reflects the
	// last finished migration.
	Undecodable Undecodable
	// Why explains to people where the rest of this comes from, such as the reason for Unknown.
	Why string
	// Census counts the raw values; nil if nobody counted. If every value was read and has a known encoding, it takes
	// precedence over recorded stored sets.
	Census *StoredCensus
	// Storeless says that the server which was asked for a census has no store of the resource.
	Storeless bool
	// CRD is nil unless the resource is a custom one.
	CRD *StoredCRD
}

// Undecodable are objects that cannot be read, by whatever release.
type Undecodable struct {
	Objects int64
	// First names some of them.
	First []string
}

// StoredCensus counts the raw values of one resource.
type StoredCensus struct {
	// Objects counts them by the group/version that their envelopes name.
	Objects map[string]int64
	// First names the first objects of each encoding, and under "" the unreadable ones.
	First map[string][]string
	// Encrypted and Unreadable count the values whose envelopes cannot be read.
	Encrypted, Unreadable int64
	// Partial is why not every value was read; "" if all were.
	Partial string
}

// StoredCRD holds the versions that a CustomResourceDefinition names, as group/versions.
type StoredCRD struct {
	// Versions are the versions of the spec, served or not: every server decodes them.
	Versions []string
	// StoredVersions are the versions of the status: no object has another one.
	StoredVersions []string
}

// Finding is the verdict on one resource.
type Finding struct {
	Resource string `json:"resource"`
	// Stored are the group/versions that objects may have, sorted, and "Unknown" last if others are possible.
	Stored  []string `json:"stored"`
	Verdict Safety   `json:"verdict"`
	// Reason is the verdict's, to an operator.
	Reason string `json:"reason"`
	// Undecodable lists the elements of Stored that make it unsafe.
	Undecodable []string `json:"undecodable,omitempty"`
	// Objects are how many objects that concerns, where they were counted, and First names the
	// first of them.
	Objects int64    `json:"objects,omitempty"`
	First   []string `json:"first,omitempty"`
}

// Target is a server that will be started, for example after a downgrade, on the objects stored in etcd.
type Target struct {
	// Name is the target's name in reasons, such as "1.35".
	Name string

	resources  map[schema.GroupResource]reading
	lifecycles []Lifecycle
	// silent explains why the target cannot decode an encoding about which nothing is known.
	silent string
	// compatible says that servers of this binary may have the target as their minimum compatibility version.
	compatible bool
}

// reading is how a target reads one resource.
type reading struct {
	versions []versionReading
	// lacks is why the target never reads the resource; "" if it may.
	lacks string
	// storage is the group/version in which the target will write the resource; "" if that is not known.
	storage string
}

type versionReading struct {
	encoding string
	decoded  bool
	// newer says that it was introduced after the target.
	newer bool
	// why it is not decoded, or that the next release will not.
	why string
}

// Target returns the server that the plan is of.
func (p *Plan) Target() *Target {
	t := &Target{Name: "this binary (" + p.Binary.String() + ")", resources: map[schema.GroupResource]reading{}, lifecycles: p.lifecycles, silent: "this binary does not know it"}
	if !p.Emulation.EqualTo(p.Binary) {
		t.Name = fmt.Sprintf("this binary (%s, emulating %s)", p.Binary, p.Emulation)
	}
	for _, r := range p.Resources {
		if !r.persisted() {
			continue
		}
		read := reading{versions: r.readings(), storage: r.Storage.String()}
		for _, shared := range p.Resources {
			if shared.Resource == r.Resource && shared.Group != r.Group && !shared.persisted() {
				read.versions = append(read.versions, shared.readings()...)
			}
		}
		t.resources[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = read
	}
	return t
}

// persisted: a resource without a storage version is not stored, or is stored as another resource of its name. If the
// binary no longer has any type of a resource, objects may still be stored.
func (r ResourcePlan) persisted() bool { return !r.Storage.Empty() || len(r.Decodable) == 0 }

func (r ResourcePlan) readings() []versionReading {
	var out []versionReading
	for _, v := range r.Served {
		encoding := schema.GroupVersion{Group: r.Group, Version: v.Version}.String()
		read := versionReading{encoding: encoding, decoded: slices.Contains(r.Decodable, encoding)}
		if !read.decoded {
			read.why = v.Reason
		}
		out = append(out, read)
	}
	return out
}

// ReleaseTarget returns the server of another release than this binary's, as the lifecycles describe it: it decodes a version from its
// introduction until its removal.
func ReleaseTarget(lifecycles []Lifecycle, release *version.Version) *Target {
	release = minor(release)
	t := &Target{Name: release.String(), resources: map[schema.GroupResource]reading{}, lifecycles: lifecycles, silent: "no release is known to have it"}
	t.compatible = contains(AllowedMinCompatibility(BinaryVersion(), BinaryVersion()), release)
	rows := slices.Clone(lifecycles)
	slices.SortFunc(rows, compareLifecycles)
	shared := map[string][]versionReading{}
	for _, l := range rows {
		if l.NotPersisted {
			shared[l.Resource] = append(shared[l.Resource], readingAt(l, release))
		}
	}
	for _, rows := range byResource(rows) {
		if rows[0].NotPersisted {
			continue
		}
		read := reading{lacks: lacks(rows, release)}
		for _, l := range rows {
			read.versions = append(read.versions, readingAt(l, release))
		}
		read.versions = append(read.versions, shared[rows[0].Resource]...)
		t.resources[rows[0].GroupResource()] = read
	}
	return t
}

func readingAt(l Lifecycle, release *version.Version) versionReading {
	r := versionReading{encoding: l.GroupVersion().String()}
	switch {
	case !l.introducedBy(release):
		r.newer, r.why = true, "introduced in "+l.Introduced.String()
	case l.removedBy(release) && !l.Kept:
		r.why = "removed in " + l.Removed.String()
	case l.Gone && l.Removed == nil:
		r.why = "removed, nobody knows when"
	default:
		r.decoded = true
		if l.removedBy(release.AddMinor(1)) && !l.Kept {
			r.why = "to be removed in " + l.Removed.String()
		}
	}
	return r
}

// lacks says why a release never reads a resource: it is older than the resource, or has nothing but an alpha version of it, which is
// off unless asked for. Such releases do not constrain how the resource is stored, and its objects are there when a release reads
// them again. That is not so for a resource which the release has lost, so that one is not lacking.
func lacks(rows []Lifecycle, release *version.Version) string {
	alphaToo := slices.ContainsFunc(rows, func(l Lifecycle) bool { return isAlpha(l) && l.decodedBy(release) })
	if lasting := slices.DeleteFunc(slices.Clone(rows), isAlpha); len(lasting) > 0 {
		rows = lasting
	}
	var first *version.Version
	for _, l := range rows {
		switch {
		case l.decodedBy(release):
			return ""
		case !l.introducedBy(release) && (first == nil || l.Introduced.LessThan(first)):
			first = l.Introduced
		}
	}
	switch {
	case first == nil:
		return ""
	case alphaToo:
		return fmt.Sprintf("%s has only an alpha version of it, off by default (%s has more): while that is off, objects stay as they are", release, first)
	}
	return fmt.Sprintf("%s does not serve it (%s does first): objects stay as they are", release, first)
}

// Resources returns the persisted resources that the target knows, sorted by group and resource.
func (t *Target) Resources() []schema.GroupResource {
	return slices.SortedFunc(maps.Keys(t.resources), func(a, b schema.GroupResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
}

// Avoidable says whether servers of this binary do not store the encoding of a resource if the target is their minimum
// compatibility version.
func (t *Target) Avoidable(gr schema.GroupResource, encoding string) bool {
	v, _ := t.decodes(t.resources[gr], encoding)
	return t.compatible && v.newer
}

// Stranded says whether no release migrates objects of a resource from the encoding to one that the target decodes.
func (t *Target) Stranded(gr schema.GroupResource, encoding string) bool {
	return Stranded(t.lifecycles, gr, encoding, func(e string) bool {
		_, ok := t.decodes(t.resources[gr], e)
		return ok
	})
}

// Judge says whether the target decodes every encoding in which objects of the resource may be stored.
func (t *Target) Judge(s Stored) Finding {
	if s.Census.complete() {
		s.Encodings, s.Unknown = nil, false
	}
	if s.Unknown && s.Census == nil && s.CRD != nil && len(s.CRD.StoredVersions) > 0 {
		s.Encodings, s.Unknown = append(slices.Clone(s.Encodings), s.CRD.StoredVersions...), false
	}
	f := Finding{Resource: s.Resource.String(), Stored: s.encodings()}
	read, known := t.resources[s.Resource]
	switch {
	case s.Unknown && s.Census == nil:
		f.Stored = append(f.Stored, "Unknown")
	case len(f.Stored) == 0 && s.uncertain() == "":
		f.Verdict, f.Reason = Safe, "nothing is stored"
		if s.Why != "" && s.Census == nil {
			f.Reason = s.Why
			if !s.Storeless {
				f.Reason += "; raw values were not read"
			}
		}
		return f
	}
	switch {
	case s.CRD != nil:
		read = s.CRD.reading()
		t = &Target{Name: "its CustomResourceDefinition", silent: "not among its versions"}
	case !known:
		f.Reason = "it is not known which releases decode it"
		if s.Why != "" {
			f.Reason += "; " + s.Why
		}
		return f
	case read.lacks != "":
		f.Verdict, f.Reason = Safe, read.lacks
		return f
	}
	var reasons, until []string
	for _, e := range f.Stored {
		v, ok := t.decodes(read, e)
		switch {
		case e == "Unknown":
		case !ok:
			f.Undecodable = append(f.Undecodable, e)
			f.concerns(s.Census, e)
			reasons = append(reasons, e+" ("+v.why+s.counted(e)+")")
		case v.why != "":
			until = append(until, e+" is "+v.why)
		}
	}
	switch uncertain := s.uncertain(); {
	case len(reasons) > 0:
		f.Verdict, f.Reason = Unsafe, t.Name+" cannot decode "+strings.Join(reasons, ", ")
	case uncertain != "":
		f.Reason = uncertain
		f.unread(s)
	case s.CRD != nil:
		f.Verdict, f.Reason = Safe, "among the versions of its CustomResourceDefinition"
	default:
		f.Verdict, f.Reason = Safe, t.safely(read, f.Stored, until)
	}
	return f
}

// concerns adds the objects of an encoding.
func (f *Finding) concerns(c *StoredCensus, encoding string) {
	if c != nil {
		f.Objects += c.Objects[encoding]
		f.First = append(f.First, c.First[encoding]...)
	}
}

// unread adds the objects that cannot be read.
func (f *Finding) unread(s Stored) {
	if s.Census != nil && s.Census.Unreadable > 0 {
		f.Objects, f.First = s.Census.Unreadable, s.Census.First[""]
		return
	}
	f.Objects, f.First = s.Undecodable.Objects, s.Undecodable.First
}

// safely is the reason where everything stored is decoded.
func (t *Target) safely(read reading, stored, until []string) string {
	reason := strings.Join(append([]string{"decoded by " + t.Name}, until...), "; ")
	if read.storage != "" && !slices.Equal(stored, []string{read.storage}) {
		reason += "; stored as " + read.storage + " from then on"
	}
	return reason
}

func (t *Target) decodes(read reading, encoding string) (versionReading, bool) {
	i := slices.IndexFunc(read.versions, func(v versionReading) bool { return v.encoding == encoding })
	if i < 0 {
		return versionReading{encoding: encoding, why: t.silent}, false
	}
	return read.versions[i], read.versions[i].decoded
}

func (c *StoredCRD) reading() reading {
	var read reading
	for _, v := range c.Versions {
		read.versions = append(read.versions, versionReading{encoding: v, decoded: true})
	}
	return read
}

// complete reports whether every value was read and has a known encoding.
func (c *StoredCensus) complete() bool {
	return c != nil && c.Encrypted == 0 && c.Unreadable == 0 && c.Partial == ""
}

// encodings are all that are named, by the stored set, by reports or by envelopes, sorted.
func (s Stored) encodings() []string {
	all := append(append([]string{}, s.Encodings...), s.Reported...)
	if s.Census != nil {
		all = slices.AppendSeq(all, maps.Keys(s.Census.Objects))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// unreported stands among Stored.Reported for a server that writes and reports nothing.
const unreported = "Unknown"

// Silent says whether a server reports nothing, so that it may write others as long as it lives.
func (s Stored) Silent() bool { return slices.Contains(s.Reported, unreported) }

// uncertain is why other encodings than those named are possible; "" if they are not.
func (s Stored) uncertain() string {
	var more string
	switch c := s.Census; {
	case c != nil && c.Unreadable > 0:
		return values(c.Unreadable) + " unreadable, for whatever release"
	case s.Undecodable.Objects > 0: // a census does not convert objects
		return fmt.Sprintf("a migration found that %s cannot be read, for whatever release", objects(s.Undecodable.Objects))
	case !s.Unknown && c != nil && s.Silent():
		return "a server that reports nothing may write others (kubectl concord status names it)"
	case !s.Unknown:
		return ""
	case c == nil:
		more = "raw values were not read"
	case c.Encrypted > 0:
		more = values(c.Encrypted) + " encrypted"
	case c.Partial != "":
		more = "not all raw values were read: " + c.Partial
	default:
		return ""
	}
	return cmp.Or(s.Why, "its stored set says Unknown") + ", and " + more
}

// counted returns how many objects have an encoding, if they were counted.
func (s Stored) counted(encoding string) string {
	switch {
	case s.Census == nil:
	case s.Census.Objects[encoding] > 0:
		return fmt.Sprintf("; %d stored", s.Census.Objects[encoding])
	case s.Census.complete() && slices.Contains(s.Reported, encoding):
		return "; none stored, but servers write it"
	}
	return ""
}

func objects(n int64) string {
	if n == 1 {
		return "1 object"
	}
	return fmt.Sprintf("%d objects", n)
}

func values(n int64) string {
	if n == 1 {
		return "1 value is"
	}
	return fmt.Sprintf("%d values are", n)
}

// Overall returns the verdict on all findings: unsafe if one is unsafe, otherwise unknown if one is unknown.
func Overall(findings []Finding) Safety {
	overall := Safe
	for _, f := range findings {
		switch f.Verdict {
		case Unsafe:
			return Unsafe
		case CouldNotTell:
			overall = CouldNotTell
		case Safe:
		}
	}
	return overall
}

// ParseTarget reads the value of a flag that names the release to go to (--to) or back to (--back-to). Lifecycles say what the release
// after the binary removes, and lack versions that were removed before binary-3. The error names the flag and the versions it allows.
func ParseTarget(binary *version.Version, flag, value string, back bool) (*version.Version, error) {
	last := binary.AddMinor(1)
	if back {
		last = minor(binary)
	}
	allowed := releases(binary.SubtractMinor(supported), last)
	v, err := parse(flag, value, allowed)
	if err != nil {
		return nil, err
	}
	if !contains(allowed, v) {
		why := "older than this binary can tell"
		if v.GreaterThan(last) {
			why = "newer than this binary can tell"
		}
		if back && v.GreaterThan(last) {
			why = "newer than this binary"
		}
		return nil, flagError(flag, value, why, allowed)
	}
	return v, nil
}
