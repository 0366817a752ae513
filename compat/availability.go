package compat

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// own are the alpha versions that Concord's storage protocol stands on: always on, also under emulation.
var own = sets.New(
	schema.GroupVersion{Group: "internal.apiserver.k8s.io", Version: "v1alpha1"},
	schema.GroupVersion{Group: "migration.k8s.io", Version: "v1alpha1"},
)

// availability decides which versions of one resource are served (KEP-4330, API availability). Rows and result are newest first.
func availability(rows []Lifecycle, o Options, config runtimeConfig) ([]VersionPlan, error) {
	out := make([]VersionPlan, 0, len(rows))
	older := "" // the newest version so far that is served because the emulated release has it
	for _, l := range slices.Backward(rows) {
		want := config.preference(l, o)
		if isAlpha(l) && want.enabled && o.Emulation.LessThan(o.Binary) {
			return nil, fmt.Errorf("%s enables %s: alpha APIs may not be used while emulation version %s is below binary version %s, allowed are beta and stable versions",
				want, name(l), o.Emulation, o.Binary)
		}
		v := judge(l, o, want, older)
		if v.Served && l.introducedBy(o.Emulation) {
			older = v.Version
		}
		out = append(out, v)
	}
	slices.Reverse(out)
	return out, nil
}

// judge decides about one version. Older is a version of the same resource, less stable or older, that the emulated release serves.
func judge(l Lifecycle, o Options, want preference, older string) VersionPlan {
	switch {
	case l.Gone && l.Removed != nil:
		return VersionPlan{l.Version, false, fmt.Sprintf("removed in %s, this binary no longer has it", l.Removed)}
	case l.Gone:
		return VersionPlan{l.Version, false, "this binary no longer has it"}
	case l.removedBy(o.Emulation):
		return VersionPlan{l.Version, false, fmt.Sprintf("removed in %s", l.Removed)}
	case l.introducedBy(o.Emulation) && o.ForwardCompatible && older != "" && !isAlpha(l) && !want.enabled && !want.named:
		return VersionPlan{l.Version, true, fmt.Sprintf("%s; on by --emulation-forward-compatible, as %s is served", age(l, o), older)}
	case l.introducedBy(o.Emulation):
		return VersionPlan{l.Version, want.enabled, age(l, o) + because(l, o, want)}
	}
	newer := fmt.Sprintf("introduced in %s, after emulation version %s", l.Introduced, o.Emulation)
	switch {
	case want.named:
		return VersionPlan{l.Version, want.enabled, newer + because(l, o, want)}
	case o.ForwardCompatible && older != "" && !isAlpha(l):
		return VersionPlan{l.Version, true, fmt.Sprintf("%s; on by --emulation-forward-compatible, as %s is served", newer, older)}
	default:
		return VersionPlan{l.Version, false, newer}
	}
}

// isAlpha reports whether l is an alpha version that no default and no emulation enables.
func isAlpha(l Lifecycle) bool {
	return maturityOf(l.Version) == alpha && !own.Has(l.GroupVersion())
}

// age is how mature and how old a version is in the eyes of the emulated release: "beta since 1.34, deprecated in 1.37, will be removed in 1.40".
func age(l Lifecycle, o Options) string {
	s := string(maturityOf(l.Version))
	if l.Introduced != nil {
		s += " since " + l.Introduced.String()
	}
	if l.Deprecated != nil && !l.Deprecated.GreaterThan(o.Emulation) {
		s += ", deprecated in " + l.Deprecated.String()
		if l.Removed != nil {
			s += ", will be removed in " + l.Removed.String()
		}
	}
	return s
}

func because(l Lifecycle, o Options, want preference) string {
	onOff := map[bool]string{true: "on", false: "off"}[want.enabled]
	switch {
	case want.key != "":
		return fmt.Sprintf("; %s by %s", onOff, want)
	case own.Has(l.GroupVersion()):
		return "; on, Concord needs it"
	case want.enabled && maturityOf(l.Version) == stable:
		return ""
	case want.enabled:
		return "; on by default"
	case isAlpha(l) && o.Emulation.LessThan(o.Binary):
		return fmt.Sprintf("; off, alpha needs emulation version %s", o.Binary)
	default:
		return fmt.Sprintf("; off by default, --runtime-config=%s=true enables it", l.GroupVersion())
	}
}
