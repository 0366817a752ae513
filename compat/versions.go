package compat

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Binary is the Kubernetes release whose libraries, and so whose APIs, this project is built from.
const Binary = "1.37"

// release is the Kubernetes release that this program says it is. Tests link programs that stand for older
// releases; nothing else sets it.
var release = Binary

// supported is how many releases before the binary can be emulated and be compatible with (KEP-4330, Graduation Criteria, Beta).
const supported = 3

var (
	majorMinor = regexp.MustCompile(`^v?[0-9]+\.[0-9]+$`)
	// patched is a version with more than that.
	patched = regexp.MustCompile(`^v?([0-9]+\.[0-9]+)[.+-]`)
)

// BinaryVersion returns the release of this program.
func BinaryVersion() *version.Version { return version.MustParseMajorMinor(release) }

// AllowedEmulation returns the versions a binary can emulate, binary-3 to binary, oldest first.
func AllowedEmulation(binary *version.Version) []*version.Version {
	return releases(binary.SubtractMinor(supported), binary)
}

// AllowedMinCompatibility returns the min compatibility versions that can be combined with an emulation version,
// binary-3 to emulation, oldest first. The emulation version must be an allowed one.
func AllowedMinCompatibility(binary, emulation *version.Version) []*version.Version {
	return releases(binary.SubtractMinor(supported), emulation)
}

// DefaultMinCompatibility is emulation-1, and emulation itself when that is already the oldest supported version.
func DefaultMinCompatibility(binary, emulation *version.Version) *version.Version {
	if minor(emulation).GreaterThan(binary.SubtractMinor(supported)) {
		return emulation.SubtractMinor(1)
	}
	return minor(emulation)
}

// ValidateVersions checks the ranges of KEP-4330, Component Flags. The error names the flag and the versions it allows.
func ValidateVersions(binary, emulation, minCompatibility *version.Version) error {
	if err := validateEmulation(binary, emulation); err != nil {
		return err
	}
	if allowed := AllowedMinCompatibility(binary, emulation); !contains(allowed, minCompatibility) {
		return flagError("min-compatibility-version", minCompatibility.String(), "out of range for emulation version "+minor(emulation).String(), allowed)
	}
	return nil
}

func validateEmulation(binary, emulation *version.Version) error {
	if allowed := AllowedEmulation(binary); !contains(allowed, emulation) {
		return flagError("emulation-version", emulation.String(), "out of range for binary version "+minor(binary).String(), allowed)
	}
	return nil
}

// ParseVersions reads the values of --emulation-version and --min-compatibility-version, such as "1.36"; "" takes the default.
// The error names the flag and the versions it allows.
func ParseVersions(binary *version.Version, emulation, minCompatibility string) (e, m *version.Version, err error) {
	e = minor(binary)
	if emulation != "" {
		if e, err = parse("emulation-version", emulation, AllowedEmulation(binary)); err != nil {
			return nil, nil, err
		}
	}
	if err = validateEmulation(binary, e); err != nil {
		return nil, nil, err
	}
	m = DefaultMinCompatibility(binary, e)
	if minCompatibility != "" {
		if m, err = parse("min-compatibility-version", minCompatibility, AllowedMinCompatibility(binary, e)); err != nil {
			return nil, nil, err
		}
	}
	if err = ValidateVersions(binary, e, m); err != nil {
		return nil, nil, err
	}
	return e, m, nil
}

func parse(flag, value string, allowed []*version.Version) (*version.Version, error) {
	v, err := version.ParseMajorMinor(value)
	if more := patched.FindStringSubmatch(value); more != nil {
		return nil, flagError(flag, value, "a release is major.minor, "+more[1]+" here", allowed)
	}
	if err != nil || !majorMinor.MatchString(value) {
		return nil, flagError(flag, value, "not a version", allowed)
	}
	return v, nil
}

func flagError(flag, value, why string, allowed []*version.Version) error {
	return fmt.Errorf("invalid value %q for flag --%s: %s, allowed versions are %s", value, flag, why, join(allowed))
}

// releases lists the minor releases from one to another of the same major version, both included, oldest first.
func releases(from, to *version.Version) []*version.Version {
	var out []*version.Version
	for m := from.Minor(); from.Major() == to.Major() && m <= to.Minor(); m++ {
		out = append(out, version.MajorMinor(from.Major(), m))
	}
	return out
}

func minor(v *version.Version) *version.Version { return version.MajorMinor(v.Major(), v.Minor()) }

func contains(list []*version.Version, v *version.Version) bool {
	return slices.ContainsFunc(list, minor(v).EqualTo)
}

func join(list []*version.Version) string {
	if len(list) == 0 {
		return "none"
	}
	names := make([]string, len(list))
	for i, v := range list {
		names[i] = v.String()
	}
	return strings.Join(names, ", ")
}
