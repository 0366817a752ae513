package compat

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

// KEP-4330, Component Flags: "Defaults to emulationVersion-1 if emulationVersion.GreaterThan(binaryVersion-3) [...], and defaults to
// emulationVersion if emulationVersion.EqualTo(binaryVersion-3)". Of the emulation version: "Defaults to binaryVersion".
func TestParseVersionsDefaults(t *testing.T) {
	for _, c := range []struct{ emulation, minCompatibility, wantEmulation, wantMin string }{
		{"", "", "1.37", "1.36"},
		{"1.37", "", "1.37", "1.36"},
		{"1.36", "", "1.36", "1.35"},
		{"1.35", "", "1.35", "1.34"},
		{"1.34", "", "1.34", "1.34"},
		{"", "1.37", "1.37", "1.37"},
		{"", "1.34", "1.37", "1.34"},
		{"v1.36", "1.36", "1.36", "1.36"},
	} {
		e, m, err := ParseVersions(BinaryVersion(), c.emulation, c.minCompatibility)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
		} else if e.String() != c.wantEmulation || m.String() != c.wantMin {
			t.Errorf("%+v: got emulation %s, min compatibility %s", c, e, m)
		}
	}
}

// "If below the supported version range the binary will exit and report an invalid flag value error telling the user what versions are
// allowed." The grid's "--emulation-version=<N-2> - fails flag validation" is the alpha range; the beta range, "Emulation version support
// for N-3 minor versions", wins.
func TestParseVersionsErrors(t *testing.T) {
	const emulation = "allowed versions are 1.34, 1.35, 1.36, 1.37"
	for _, c := range []struct{ emulation, minCompatibility, value, flag, allowed string }{
		{"1.38", "", `"1.38"`, "--emulation-version", emulation}, // "--emulation-version=<N+1> - fails flag validation, binary exits"
		{"1.33", "", `"1.33"`, "--emulation-version", emulation},
		{"1.4000000000", "", `"1.4000000000"`, "--emulation-version", emulation},
		{"2.36", "", `"2.36"`, "--emulation-version", emulation},
		{"latest", "", `"latest"`, "--emulation-version", emulation},
		{"1.36rc", "", `"1.36rc"`, "--emulation-version", emulation},
		{"1.36.2", "", `"1.36.2"`, "--emulation-version", emulation},
		{"1", "", `"1"`, "--emulation-version", emulation},
		{"1.36", "1.37", `"1.37"`, "--min-compatibility-version", "allowed versions are 1.34, 1.35, 1.36"}, // "Must be <= --emulation-version"
		{"1.36", "1.33", `"1.33"`, "--min-compatibility-version", "allowed versions are 1.34, 1.35, 1.36"},
		{"", "1.x", `"1.x"`, "--min-compatibility-version", emulation},
	} {
		_, _, err := ParseVersions(BinaryVersion(), c.emulation, c.minCompatibility)
		wantError(t, err, "invalid value "+c.value+" for flag "+c.flag, c.allowed)
	}
}

func TestPlanChecksVersions(t *testing.T) {
	_, err := NewPlan(nil, options(t, Binary, "1.33", ""))
	wantError(t, err, "--emulation-version", "out of range for binary version 1.37", "1.34, 1.35, 1.36, 1.37")
	_, err = NewPlan(nil, options(t, Binary, "1.35", "1.36"))
	wantError(t, err, "--min-compatibility-version", "out of range for emulation version 1.35", "1.34, 1.35")

	p := mustPlan(t, nil, Options{Emulation: version.MustParse("1.36.4")})
	if got := p.Binary.String() + " " + p.Emulation.String() + " " + p.MinCompatibility.String(); got != "1.37 1.36 1.35" {
		t.Errorf("versions of the plan are %s", got)
	}
}
