package compat

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Component is a program that sends requests to an API server, by the name it gives itself.
type Component string

// The components that have an allowed skew. All others are OtherComponent; clients that do not name a component are
// UnknownComponent.
const (
	KubeControllerManager  Component = "kube-controller-manager"
	KubeScheduler          Component = "kube-scheduler"
	CloudControllerManager Component = "cloud-controller-manager"
	KubeProxy              Component = "kube-proxy"
	Kubelet                Component = "kubelet"
	Kubectl                Component = "kubectl"
	// ConcordServer and ConcordControllers are held to the skew of controllers, ConcordCommand to that of kubectl
	// (beyond KEP-4330).
	ConcordServer      Component = "concord-server"
	ConcordControllers Component = "concord-controllers"
	ConcordCommand     Component = "concord"

	OtherComponent   Component = "other"
	UnknownComponent Component = "unknown"
)

// ComponentVersionHeader is the request header in which a component says which release it stands for, as
// ComponentVersion writes it. It wins over the User-Agent, which names the binary's release: skew is defined by
// emulation versions where they are in use (KEP-4330, "Component Flags").
const ComponentVersionHeader = "X-Concord-Component-Version"

// Window holds the two releases by which a server judges the skew of other components.
//
// Invariant: MinCompatibility <= Emulation.
type Window struct {
	Emulation, MinCompatibility *version.Version
}

// skewRule is one row of KEP-4330's "Skew": MinCompatibility-below..Emulation+above.
type skewRule struct{ below, above uint }

var (
	skewRules = map[Component]skewRule{
		KubeControllerManager:  {0, 0},
		KubeScheduler:          {0, 0},
		CloudControllerManager: {0, 0},
		KubeProxy:              {2, 0},
		Kubelet:                {2, 0},
		Kubectl:                {0, 1},
		ConcordServer:          {0, 0},
		ConcordControllers:     {0, 0},
		ConcordCommand:         {0, 1},
	}
	// serverRule is the skew that servers allow each other, for which KEP-4330 has no row: it is the window of
	// releases that can read the objects that a server stores.
	serverRule = skewRule{0, 1}
)

// SkewRange is a range of minor releases, both ends included.
type SkewRange struct{ Oldest, Newest *version.Version }

// String returns the range as KEP-4330 writes it: "1.35..1.36".
func (r SkewRange) String() string { return r.Oldest.String() + ".." + r.Newest.String() }

// Judge places a version, whose patch does not matter.
func (r SkewRange) Judge(v *version.Version) Verdict {
	switch {
	case v == nil:
		return Unknown
	case minor(v).LessThan(r.Oldest):
		return TooOld
	case minor(v).GreaterThan(r.Newest):
		return TooNew
	default:
		return Within
	}
}

func (r skewRule) of(w Window) SkewRange {
	return SkewRange{Oldest: w.MinCompatibility.SubtractMinor(r.below), Newest: w.Emulation.AddMinor(r.above)}
}

// Skew returns the releases that a component of a server's cluster may stand for (KEP-4330, "Skew"); false for
// components that have no rule.
func Skew(c Component, w Window) (SkewRange, bool) {
	rule, ok := skewRules[c]
	if !ok {
		return SkewRange{}, false
	}
	return rule.of(w), true
}

// Verdict says where a version lies relative to the allowed range.
type Verdict int

const (
	// Unknown: the component has no rule, or its version is not known.
	Unknown Verdict = iota
	Within
	TooOld
	TooNew
)

// String implements fmt.Stringer.
func (v Verdict) String() string {
	switch v {
	case Within:
		return "within"
	case TooOld:
		return "older"
	case TooNew:
		return "newer"
	default:
		return "unknown"
	}
}

// Judge decides whether a component of this version (nil if unknown) may talk to a server with this window.
func Judge(c Component, v *version.Version, w Window) Verdict {
	allowed, ok := Skew(c, w)
	if !ok {
		return Unknown
	}
	return allowed.Judge(v)
}

// Identity is the component that sent a request, and its version, as far as the request says.
type Identity struct {
	// Component is one with an allowed skew, OtherComponent or UnknownComponent, whatever was sent.
	Component Component
	// Version is the minor release; nil if it is not known. That of OtherComponent need not be a release of
	// Kubernetes.
	Version *version.Version
}

const (
	// maxIdentity bounds how much of a header is looked at.
	maxIdentity = 256
	// unsetMajor is the major version of a client-go that was built without link flags: v0.0.0.
	unsetMajor = 0
)

var (
	componentName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	componentVersion = regexp.MustCompile(`^v?(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})(?:\.[0-9]+)?(?:[-+][0-9A-Za-z.+-]*)?$`)
)

// Identify reads the sender of a request, from its ComponentVersionHeader or, where that is missing or mangled, from its
// User-Agent. It never fails: a component or version that cannot be read is unknown.
func Identify(header, userAgent string) Identity {
	if name, v, ok := strings.Cut(header, "/"); ok && len(header) <= maxIdentity {
		if id := identity(name, v); id.Component != UnknownComponent && id.Version != nil {
			return id
		}
	}
	return ParseUserAgent(userAgent)
}

// ParseUserAgent reads a User-Agent as client-go makes it: "<command>/<version> (<os>/<arch>) kubernetes/<commit>",
// with more behind it or less. It never fails: a name that cannot be read is UnknownComponent, and a version that
// cannot be read, or is the v0.0.0 of a client-go that was not told its own, is nil.
func ParseUserAgent(userAgent string) Identity {
	userAgent = userAgent[:min(len(userAgent), maxIdentity)]
	product, _, _ := strings.Cut(userAgent, " ")
	name, v, _ := strings.Cut(product, "/")
	return identity(name, v)
}

func identity(name, v string) Identity {
	if !componentName.MatchString(name) {
		return Identity{Component: UnknownComponent}
	}
	id := Identity{Component: Component(strings.TrimSuffix(name, ".exe"))}
	if _, ok := skewRules[id.Component]; !ok {
		id.Component = OtherComponent
	}
	if parts := componentVersion.FindStringSubmatch(v); parts != nil {
		// The pattern bounds both numbers.
		major, _ := strconv.ParseUint(parts[1], 10, 16)
		minor, _ := strconv.ParseUint(parts[2], 10, 16)
		if major != unsetMajor {
			id.Version = version.MajorMinor(uint(major), uint(minor))
		}
	}
	return id
}

// ComponentVersion returns the value of ComponentVersionHeader: "concord-server/1.37". emulation is the release that
// the component stands for.
func ComponentVersion(c Component, emulation *version.Version) string {
	return string(c) + "/" + minor(emulation).String()
}

// ServerVersions are the versions of one server from its identity Lease; nil if the Lease does not have them.
type ServerVersions struct {
	ID                                  string
	Binary, Emulation, MinCompatibility *version.Version
}

// ParseServerVersions reads the versions that a server wrote. A string that is no version gives nil.
func ParseServerVersions(id, binary, emulation, minCompatibility string) ServerVersions {
	read := func(s string) *version.Version {
		if !majorMinor.MatchString(s) || len(s) > maxIdentity {
			return nil
		}
		v, err := version.ParseMajorMinor(s)
		if err != nil {
			return nil
		}
		return v
	}
	return ServerVersions{ID: id, Binary: read(binary), Emulation: read(emulation), MinCompatibility: read(minCompatibility)}
}

func (s ServerVersions) known() bool { return s.Emulation != nil && s.MinCompatibility != nil }

// ServerSkew is how far the servers of a cluster are from each other.
type ServerSkew struct {
	// Oldest and Newest are emulation versions; nil if no server's is known.
	Oldest, Newest *version.Version
	// Windows are the different versions that servers stand for, oldest first.
	Windows []Window
	// Silent lists the IDs of servers whose emulation and min compatibility versions are not known, sorted.
	Silent []string
	// Violations is empty if every server with known versions allows every other.
	Violations []SkewViolation
}

// SkewViolation says that servers emulate a release that other servers do not allow.
type SkewViolation struct {
	// Emulation is the release they stand for.
	Emulation *version.Version
	// Of is the window that does not allow it, Allowed the range that it does allow.
	Of      Window
	Allowed SkewRange
	Verdict Verdict
}

// String is for an operator.
func (v SkewViolation) String() string {
	return fmt.Sprintf("%s is %s than the %s that servers at emulation version %s with min compatibility version %s allow",
		v.Emulation, v.Verdict, v.Allowed, v.Of.Emulation, v.Of.MinCompatibility)
}

// JudgeServers compares the versions of the servers that share a storage. Two servers allow each other when either's
// emulation version is in the other's MinCompatibility..Emulation+1, which are the releases that can read what it
// stores (beyond KEP-4330, which has no row for servers). With the default min compatibility version that is one
// release of skew.
func JudgeServers(servers []ServerVersions) ServerSkew {
	var skew ServerSkew
	for _, s := range servers {
		if !s.known() {
			skew.Silent = append(skew.Silent, s.ID)
		} else if w := (Window{Emulation: minor(s.Emulation), MinCompatibility: minor(s.MinCompatibility)}); !slices.ContainsFunc(skew.Windows, w.equal) {
			skew.Windows = append(skew.Windows, w)
		}
		if e := s.Emulation; e != nil {
			if skew.Oldest == nil || e.LessThan(skew.Oldest) {
				skew.Oldest = minor(e)
			}
			if skew.Newest == nil || e.GreaterThan(skew.Newest) {
				skew.Newest = minor(e)
			}
		}
	}
	slices.Sort(skew.Silent)
	slices.SortFunc(skew.Windows, Window.compare)
	for _, of := range skew.Windows {
		allowed := serverRule.of(of)
		for i, other := range skew.Windows {
			if i > 0 && other.Emulation.EqualTo(skew.Windows[i-1].Emulation) {
				continue
			}
			if verdict := allowed.Judge(other.Emulation); verdict != Within {
				skew.Violations = append(skew.Violations, SkewViolation{Emulation: other.Emulation, Of: of, Allowed: allowed, Verdict: verdict})
			}
		}
	}
	return skew
}

// Agree reports whether all servers with known versions have the same ones.
func (s ServerSkew) Agree() bool { return len(s.Windows) <= 1 }

// Allowed reports whether all servers with known versions allow each other.
func (s ServerSkew) Allowed() bool { return len(s.Violations) == 0 }

func (w Window) equal(other Window) bool { return w.compare(other) == 0 }

func (w Window) compare(other Window) int {
	return cmp.Or(compareVersions(w.Emulation, other.Emulation), compareVersions(w.MinCompatibility, other.MinCompatibility))
}

func compareVersions(a, b *version.Version) int {
	return cmp.Or(cmp.Compare(a.Major(), b.Major()), cmp.Compare(a.Minor(), b.Minor()))
}
