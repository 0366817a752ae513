package compat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

const (
	storedPolicies   = "mutatingadmissionpolicies.admissionregistration.k8s.io"
	storedMigrations = "storageversionmigrations.storagemigration.k8s.io"
	storedAddresses  = "ipaddresses.networking.k8s.io"
	storedWidgets    = "widgets.example.com"
)

// targetOf returns the target that a name stands for: a release such as "1.36", this binary ("1.37"), or this binary with another
// emulation version ("1.37 emulating 1.36").
func targetOf(t *testing.T, name string) *Target {
	t.Helper()
	rows := lifecycles(t, kubernetes+`
core           v1 events 1.2  - -
events.k8s.io  v1 events 1.19 - - notpersisted
example.com    v1 lost   1.30 - 1.36 gone
example.com    v1beta1 kept 1.30 - 1.35 kept
example.com    v1      kept 1.34 - -`)
	binary, emulation, emulating := strings.Cut(name, " emulating ")
	if binary != Binary {
		return ReleaseTarget(rows, version.MustParseMajorMinor(name))
	}
	if !emulating {
		emulation = binary
	}
	return mustPlan(t, rows, options(t, binary, emulation, "")).Target()
}

func TestJudgeStored(t *testing.T) {
	widgets := &StoredCRD{Versions: []string{"example.com/v2", "example.com/v1"}, StoredVersions: []string{"example.com/v1"}}
	for name, test := range map[string]struct {
		target, resource string
		// stored are encodings; "Unknown" among them means that there may be others.
		stored string
		// reported are the encodings that servers write; undecodable is the number of values that a migration could not decode.
		reported    string
		undecodable int64
		census      *StoredCensus
		crd         *StoredCRD
		why         string
		want        Safety
		reasons     []string
		// first is the first object that the finding names.
		first string
	}{
		"the version of today": {target: "1.37", resource: "configmaps", stored: "v1", want: Safe, reasons: []string{"decoded by this binary (1.37)"}},
		"an old version that moves": {target: "1.37", resource: storedPolicies, stored: "admissionregistration.k8s.io/v1beta1", want: Safe,
			reasons: []string{"decoded by this binary (1.37)", "stored as admissionregistration.k8s.io/v1 from then on"}},
		"emulation moves the storage version back": {target: "1.37 emulating 1.36", resource: storedPolicies, stored: "admissionregistration.k8s.io/v1", want: Safe,
			reasons: []string{"(1.37, emulating 1.36)", "stored as admissionregistration.k8s.io/v1beta1 from then on"}},
		"this binary decodes what its release removed":    {target: "1.37", resource: storedAddresses, stored: "networking.k8s.io/v1beta1", want: Safe},
		"a release does not decode what it removed":       {target: "1.38", resource: storedAddresses, stored: "networking.k8s.io/v1beta1", want: Unsafe, reasons: []string{"1.38 cannot decode networking.k8s.io/v1beta1 (removed in 1.37)"}},
		"the last release before a removal":               {target: "1.36", resource: storedAddresses, stored: "networking.k8s.io/v1beta1", want: Safe, reasons: []string{"networking.k8s.io/v1beta1 is to be removed in 1.37"}},
		"forward, before a removal":                       {target: "1.38", resource: "leasecandidates.coordination.k8s.io", stored: "coordination.k8s.io/v1beta1", want: Safe, reasons: []string{"to be removed in 1.39"}},
		"forward, over the removal of an alpha version":   {target: "1.38", resource: "leasecandidates.coordination.k8s.io", stored: "coordination.k8s.io/v1beta1 coordination.k8s.io/v1alpha2", want: Unsafe, reasons: []string{"coordination.k8s.io/v1alpha2 (removed in 1.38)"}},
		"back, before the introduction":                   {target: "1.35", resource: storedPolicies, stored: "admissionregistration.k8s.io/v1", want: Unsafe, reasons: []string{"1.35 cannot decode admissionregistration.k8s.io/v1 (introduced in 1.36)"}},
		"back, to a version that both have":               {target: "1.35", resource: storedPolicies, stored: "admissionregistration.k8s.io/v1beta1", want: Safe},
		"back, while both are stored":                     {target: "1.35", resource: storedPolicies, stored: "admissionregistration.k8s.io/v1beta1 admissionregistration.k8s.io/v1", want: Unsafe},
		"a version that nobody knows":                     {target: "1.38", resource: storedPolicies, stored: "admissionregistration.k8s.io/v2", want: Unsafe, reasons: []string{"no release is known to have it"}},
		"a version that the binary does not know":         {target: "1.37", resource: storedPolicies, stored: "admissionregistration.k8s.io/v2", want: Unsafe, reasons: []string{"this binary does not know it"}},
		"a version whose types the binary lost":           {target: "1.37", resource: storedMigrations, stored: "storagemigration.k8s.io/v1alpha1", want: Unsafe, reasons: []string{"removed in 1.35, this binary no longer has it"}},
		"the release that has those types":                {target: "1.34", resource: storedMigrations, stored: "storagemigration.k8s.io/v1alpha1", want: Safe},
		"a release that does not have the resource yet":   {target: "1.36", resource: "workloads.scheduling.k8s.io", stored: "scheduling.k8s.io/v1beta1", want: Safe, reasons: []string{"1.36 does not serve it (1.37 does first): objects stay as they are"}},
		"a release that has it as alpha only":             {target: "1.34", resource: storedMigrations, stored: "storagemigration.k8s.io/v1beta1", want: Safe, reasons: []string{"1.34 has only an alpha version of it, off by default (1.35 has more): while that is off, objects stay as they are"}},
		"a resource that never was more than alpha":       {target: "1.38", resource: "evictionrequests.lifecycle.k8s.io", stored: "lifecycle.k8s.io/v1alpha1", want: Safe},
		"a resource that never was more than alpha, back": {target: "1.36", resource: "evictionrequests.lifecycle.k8s.io", stored: "lifecycle.k8s.io/v1alpha1", want: Safe},
		"a resource that a release has lost":              {target: "1.38", resource: "ingresses.extensions", stored: "extensions/v1beta1", want: Unsafe, reasons: []string{"removed in 1.22"}},
		"a resource that the binary has lost":             {target: "1.37", resource: "lost.example.com", stored: "example.com/v1", want: Unsafe, reasons: []string{"removed in 1.36, this binary no longer has it"}},
		"a version that is stored beyond its removal":     {target: "1.36", resource: "kept.example.com", stored: "example.com/v1beta1", want: Safe},
		"one that will be":                                {target: "1.34", resource: "kept.example.com", stored: "example.com/v1beta1", want: Safe, reasons: []string{"decoded by 1.34"}},
		"Concord's own alpha version":                     {target: "1.38", resource: "storageversions.internal.apiserver.k8s.io", stored: "internal.apiserver.k8s.io/v1alpha1", want: Safe},
		"a resource of unknown lifecycle":                 {target: "1.38", resource: "pods", stored: "v1", want: CouldNotTell, reasons: []string{"not known which releases decode it"}},
		"an alias writes into the same store":             {target: "1.37", resource: "events", stored: "events.k8s.io/v1 v1", want: Safe},
		"an alias, at another release":                    {target: "1.36", resource: "events", stored: "events.k8s.io/v1", want: Safe},

		"Unknown":                                         {target: "1.37", resource: "configmaps", stored: "v1 Unknown", want: CouldNotTell, reasons: []string{"its stored set says Unknown, and raw values were not read"}},
		"Unknown, with a reason":                          {target: "1.37", resource: "configmaps", stored: "Unknown", why: "it has no StorageState", want: CouldNotTell, reasons: []string{"it has no StorageState, and raw values were not read"}},
		"Unknown, and something undecodable":              {target: "1.35", resource: storedPolicies, stored: "Unknown admissionregistration.k8s.io/v1", want: Unsafe},
		"Unknown, counted":                                {target: "1.37", resource: "configmaps", stored: "Unknown", census: &StoredCensus{Objects: map[string]int64{"v1": 3}}, want: Safe},
		"Unknown, and nothing stored":                     {target: "1.35", resource: storedPolicies, stored: "Unknown", census: &StoredCensus{}, want: Safe, reasons: []string{"nothing is stored"}},
		"Unknown, foreign values":                         {target: "1.35", resource: storedPolicies, stored: "Unknown", census: &StoredCensus{Objects: map[string]int64{"admissionregistration.k8s.io/v1": 12}}, want: Unsafe, reasons: []string{"(introduced in 1.36; 12 stored)"}},
		"Unknown, encrypted values":                       {target: "1.37", resource: "configmaps", stored: "Unknown", census: &StoredCensus{Encrypted: 2}, want: CouldNotTell, reasons: []string{"2 values are encrypted"}},
		"Unknown, encrypted and undecodable":              {target: "1.37", resource: "configmaps", stored: "Unknown", census: &StoredCensus{Encrypted: 2, Objects: map[string]int64{"v2": 1}}, want: Unsafe},
		"Unknown, damaged values":                         {target: "1.37", resource: "configmaps", stored: "Unknown", census: &StoredCensus{Unreadable: 1}, want: CouldNotTell, reasons: []string{"1 value is unreadable"}},
		"Unknown, not counted to the end":                 {target: "1.37", resource: "configmaps", stored: "Unknown", census: &StoredCensus{Partial: "it took too long"}, want: CouldNotTell, reasons: []string{"not all raw values were read: it took too long"}},
		"Unknown, at a release that never reads it":       {target: "1.36", resource: "workloads.scheduling.k8s.io", stored: "Unknown", want: Safe},
		"counted, and nothing of what is remembered":      {target: "1.35", resource: storedPolicies, stored: "admissionregistration.k8s.io/v1 admissionregistration.k8s.io/v1beta1", census: &StoredCensus{Objects: map[string]int64{"admissionregistration.k8s.io/v1beta1": 3}}, want: Safe},
		"counted, and written since":                      {target: "1.35", resource: storedPolicies, stored: "admissionregistration.k8s.io/v1beta1", reported: "admissionregistration.k8s.io/v1", census: &StoredCensus{}, want: Unsafe, reasons: []string{"1.35 cannot decode admissionregistration.k8s.io/v1 (introduced in 1.36; none stored, but servers write it)"}},
		"counted, nobody serves it and nothing is stored": {target: "1.37", resource: storedPolicies, stored: "admissionregistration.k8s.io/v2 Unknown", census: &StoredCensus{}, want: Safe, reasons: []string{"nothing is stored"}},
		"remembered, and a damaged value":                 {target: "1.37", resource: "configmaps", stored: "v1", census: &StoredCensus{Objects: map[string]int64{"v1": 3}, Unreadable: 1, First: map[string][]string{"": {"default/torn"}}}, want: CouldNotTell, reasons: []string{"1 value is unreadable"}, first: "default/torn"},
		"remembered, and encrypted values":                {target: "1.37", resource: "configmaps", stored: "v1", census: &StoredCensus{Encrypted: 3}, want: Safe},
		"remembered, encrypted and of another time":       {target: "1.37", resource: "configmaps", stored: "v1 v2", census: &StoredCensus{Encrypted: 3}, want: Unsafe},
		"a migration that met what cannot be read":        {target: "1.37", resource: "configmaps", stored: "v1", undecodable: 2, want: CouldNotTell, reasons: []string{"a migration found that 2 objects cannot be read"}, first: "default/torn"},
		"a census reads no more than the envelopes":       {target: "1.37", resource: "configmaps", stored: "v1", undecodable: 2, census: &StoredCensus{Objects: map[string]int64{"v1": 3}}, want: CouldNotTell},
		"the first of what cannot be decoded":             {target: "1.35", resource: storedPolicies, stored: "Unknown", census: &StoredCensus{Objects: map[string]int64{"admissionregistration.k8s.io/v1": 12}, First: map[string][]string{"admissionregistration.k8s.io/v1": {"a", "b"}}}, want: Unsafe, first: "a"},
		"unknown lifecycle, and nothing stored":           {target: "1.38", resource: "pods", stored: "Unknown", census: &StoredCensus{}, want: Safe},
		"nothing stored, with a reason":                   {target: "1.38", resource: "configmaps", why: "no server has reported it", want: Safe, reasons: []string{"no server has reported it"}},

		"custom resource":                           {target: "1.35", resource: storedWidgets, stored: "example.com/v1 example.com/v2", crd: widgets, want: Safe, reasons: []string{"among the versions of its CustomResourceDefinition"}},
		"custom resource, a version was removed":    {target: "1.38", resource: storedWidgets, stored: "example.com/v1 example.com/v0", crd: widgets, want: Unsafe, reasons: []string{"its CustomResourceDefinition cannot decode example.com/v0 (not among its versions)"}},
		"custom resource, by its storedVersions":    {target: "1.38", resource: storedWidgets, stored: "Unknown", crd: widgets, want: Safe},
		"custom resource, counted":                  {target: "1.38", resource: storedWidgets, stored: "Unknown", crd: widgets, census: &StoredCensus{Objects: map[string]int64{"example.com/v0": 1}}, want: Unsafe},
		"custom resource without storedVersions":    {target: "1.38", resource: storedWidgets, stored: "Unknown", crd: &StoredCRD{Versions: widgets.Versions}, want: CouldNotTell},
		"custom resource, its definition is gone":   {target: "1.38", resource: storedWidgets, stored: "example.com/v1", want: CouldNotTell},
		"custom resource of the name of a built-in": {target: "1.38", resource: "storageversionmigrations.migration.k8s.io", stored: "migration.k8s.io/v1alpha1", crd: &StoredCRD{Versions: []string{"migration.k8s.io/v1alpha1"}}, want: Safe},
	} {
		t.Run(name, func(t *testing.T) {
			s := Stored{Resource: resource(test.resource), Why: test.why, Census: test.census, CRD: test.crd}
			for _, e := range strings.Fields(test.stored) {
				if e == "Unknown" {
					s.Unknown = true
				} else {
					s.Encodings = append(s.Encodings, e)
				}
			}
			s.Reported = strings.Fields(test.reported)
			if test.undecodable > 0 {
				s.Undecodable = Undecodable{Objects: test.undecodable, First: []string{"default/torn"}}
			}
			f := targetOf(t, test.target).Judge(s)
			if test.first != "" && (len(f.First) == 0 || f.First[0] != test.first || f.Objects == 0) {
				t.Errorf("the first objects are %v of %d", f.First, f.Objects)
			}
			if f.Verdict != test.want || f.Reason == "" || strings.Contains(f.Reason, "\n") {
				t.Errorf("got %s: %q, want %s", f.Verdict, f.Reason, test.want)
			}
			for _, part := range test.reasons {
				if !strings.Contains(f.Reason, part) {
					t.Errorf("got reason %q, want %q in it", f.Reason, part)
				}
			}
			if (len(f.Undecodable) > 0) != (f.Verdict == Unsafe) || f.Resource != test.resource {
				t.Errorf("got %+v", f)
			}
		})
	}
}

// TestStoredIsSafeInTheWindow asserts that the versions that a server writes are safe for every
// release in its window, which is the purpose of the window.
func TestStoredIsSafeInTheWindow(t *testing.T) {
	rows := lifecycles(t, kubernetes)
	for _, e := range AllowedEmulation(BinaryVersion()) {
		for _, m := range AllowedMinCompatibility(BinaryVersion(), e) {
			plan := mustPlan(t, rows, Options{Emulation: e, MinCompatibility: m})
			for _, r := range plan.Resources {
				if r.Storage.Empty() {
					continue
				}
				s := Stored{Resource: resource(r.Resource + "." + r.Group), Encodings: []string{r.Storage.String()}}
				if f := plan.Target().Judge(s); f.Verdict != Safe {
					t.Errorf("emulation %s, min compatibility %s: the server itself: %+v", e, m, f)
				}
				for _, release := range releases(m, e.AddMinor(1)) {
					f := ReleaseTarget(rows, release).Judge(s)
					if f.Verdict != Safe && r.Group != "extensions" { // removed before any window
						t.Errorf("emulation %s, min compatibility %s: %s is %s for %s: %s", e, m, f.Resource, f.Verdict, release, f.Reason)
					}
				}
			}
		}
	}
}

func TestOverall(t *testing.T) {
	for want, findings := range map[Safety][]Finding{
		Safe:         {{Verdict: Safe}, {Verdict: Safe}},
		Unsafe:       {{Verdict: CouldNotTell}, {Verdict: Unsafe}, {Verdict: Safe}},
		CouldNotTell: {{Verdict: Safe}, {Verdict: CouldNotTell}},
	} {
		if got := Overall(findings); got != want {
			t.Errorf("%v: got %s, want %s", findings, got, want)
		}
	}
	if got := Overall(nil); got != Safe {
		t.Errorf("nothing: got %s", got)
	}
}

func TestFindingAsJSON(t *testing.T) {
	got, err := json.Marshal(Finding{Resource: "configmaps", Stored: []string{"v1"}, Verdict: CouldNotTell, Reason: "why"})
	if err != nil || string(got) != `{"resource":"configmaps","stored":["v1"],"verdict":"unknown","reason":"why"}` {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestParseTarget(t *testing.T) {
	for _, c := range []struct {
		value string
		back  bool
		want  string
	}{
		{"1.38", false, ""}, {"1.37", false, ""}, {"1.34", false, ""}, {"1.34", true, ""}, {"1.37", true, ""},
		{"1.39", false, `invalid value "1.39" for flag --to: newer than this binary can tell, allowed versions are 1.34, 1.35, 1.36, 1.37, 1.38`},
		{"1.38", true, "allowed versions are 1.34, 1.35, 1.36, 1.37"},
		{"1.33", true, "allowed versions are 1.34"},
		{"1.33", false, "older than this binary can tell"},
		{"1.38", true, "newer than this binary, allowed"},
		{"2.0", false, "allowed versions are 1.34"},
		{"new", false, `invalid value "new" for flag --to: not a version`},
		{"1.36.2", false, "a release is major.minor, 1.36 here, allowed versions are"},
	} {
		flag := "to"
		if c.back {
			flag = "back-to"
		}
		v, err := ParseTarget(BinaryVersion(), flag, c.value, c.back)
		switch {
		case c.want != "":
			wantError(t, err, c.want, "--"+flag)
		case err != nil || v.String() != c.value:
			t.Errorf("%s: got %v, %v", c.value, v, err)
		}
	}
}

func TestTargetResources(t *testing.T) {
	got := targetOf(t, "1.38").Resources()
	if !slices.Contains(got, resource("events")) || slices.Contains(got, resource("events.events.k8s.io")) || slices.Contains(got, resource("selfsubjectreviews.authentication.k8s.io")) {
		t.Errorf("got %v", got)
	}
	if !slices.Equal(got, targetOf(t, Binary).Resources()) {
		t.Errorf("another release has %v, this binary %v", got, targetOf(t, Binary).Resources())
	}
}

// KEP-4330, "Feature Gate Lifecycles": gating and tracking "must remain in code through" a release "for emulation version support range".
func TestRemovable(t *testing.T) {
	for _, c := range []struct{ history, from string }{
		// "must remain in code through 1.30 [...] 1.31: if featureGate enabled { // implement feature } code may be removed at this step"
		{"1.26 alpha off, 1.27 beta on, 1.28 stable on", "1.31"},
		// The KEP's table says 1.33: it has the feature removed in 1.30, where the history above it says 1.31.
		{"1.26 beta off, 1.27 deprecated off, 1.31 removed", "1.34"},
		// "Features that are deleted before reaching Beta do not require emulation version support".
		{"1.26 alpha off", "1.26"},
		{"1.26 alpha off, 1.30 alpha on", "1.26"},
		{"1.26 beta on, 1.30 deprecated off locked", "1.33"},
		{"1.26 beta on, 1.30 stable on locked", "1.33"},
		{"1.26 beta off, 1.30 beta on min=1.30, 1.32 stable on", "1.35"},
	} {
		from := version.MustParseMajorMinor(c.from)
		phases := history(t, c.history)
		for _, binary := range releases(phases[len(phases)-1].Since, version.MustParse("1.40")) {
			if got, want := Removable(phases, binary), binary.AtLeast(from); got != want {
				t.Errorf("%s: removable at %s: %t, want %t", c.history, binary, got, want)
			}
		}
	}
	if Removable(history(t, "1.26 beta on"), version.MustParse("1.90")) {
		t.Error("a beta feature is removable")
	}
}

func TestCheckHistories(t *testing.T) {
	const old = "1.34 alpha off, 1.36 beta on"
	for _, c := range []struct{ recorded, declared, want string }{ // "": no breach, else "rule: part of the detail"
		{old, old, ""},
		{old, "1.34 alpha off, 1.35 beta on", `append-only: "1.36 beta default=true" was recorded and is now "1.35 beta default=true"`},
		{old, "1.34 alpha off, 1.36 beta off", `append-only: "1.36 beta default=true" was recorded and is now "1.36 beta default=false"`},
		{old, "1.34 alpha off, 1.36 beta on locked", `append-only: "1.36 beta default=true" was recorded and is now "1.36 beta default=true locked"`},
		{old, "1.34 alpha off, 1.36 beta on min=1.36", `append-only: "1.36 beta default=true" was recorded`},
		{old, "1.34 alpha off", `append-only: "1.36 beta default=true" was recorded and is gone`},
		{old, "1.36 beta on", `append-only: "1.34 alpha default=false" was recorded and is now`},
		{old, old + ", 1.37 stable on", `append-only: "1.37 stable default=true" is not recorded: add it to the table`},
		{old, old + ", 1.36 stable on", `append-only: "1.36 stable default=true" would change what 1.36 and later releases had: a new phase begins with 1.37 or later`},
		{"", old, `append-only: "1.34 alpha default=false" is not recorded`},
		{old + ", 1.37 alpha off", old + ", 1.37 alpha off", "maturing: beta goes back to alpha in 1.37"},
		{"1.34 stable on, 1.37 beta on", "1.34 stable on, 1.37 beta on", "maturing: stable goes back to beta in 1.37"},
		{"1.34 deprecated on, 1.37 stable on", "1.34 deprecated on, 1.37 stable on", "maturing: deprecated goes back to stable in 1.37"},
		{"1.34 beta on locked, 1.37 stable on", "1.34 beta on locked, 1.37 stable on", "maturing: it is unlocked again in 1.37"},
		{"1.37 beta on, 1.36 stable on", "1.37 beta on, 1.36 stable on", `maturing: "1.36 stable default=true" comes after "1.37 beta default=true"`},
		{"1.34 stable on, 1.36 deprecated on, 1.37 removed", "1.34 stable on, 1.36 deprecated on, 1.37 removed", ""},
		{old, "", "in-range: it is gone, but 1.37 can still emulate releases that have it as beta in 1.36, beta in 1.37"},
		{"1.30 beta on, 1.35 stable on", "", "in-range: it is gone, but 1.37 can still emulate releases that have it as beta in 1.34"},
		{"1.30 beta on, 1.34 stable on", "", ""},
		{"1.30 alpha off", "", ""},
	} {
		table := func(s string) map[string][]Phase {
			if s == "" {
				return nil
			}
			return map[string][]Phase{"A": history(t, s)}
		}
		var got []string
		for _, b := range CheckHistories(table(c.recorded), table(c.declared), BinaryVersion()) {
			if !strings.HasPrefix(b.String(), fmt.Sprintf("feature A breaks the rule %s: ", b.Rule)) {
				t.Errorf("%q does not name feature and rule", b)
			}
			got = append(got, fmt.Sprintf("%s: %s", b.Rule, b.Detail))
		}
		ok := len(got) == 0
		if c.want != "" {
			ok = slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, c.want) })
		}
		if !ok {
			t.Errorf("recorded %q, declared %q: breaches %q, want %q", c.recorded, c.declared, got, c.want)
		}
	}
}

// TestBreachesAreSorted: breaches are sorted by feature, whether the recorded or the declared histories have it.
func TestBreachesAreSorted(t *testing.T) {
	recorded := map[string][]Phase{"B": history(t, "1.36 beta on"), "D": history(t, "1.36 beta on")}
	declared := map[string][]Phase{"A": history(t, "1.37 beta on"), "C": history(t, "1.37 beta on")}
	var names []string
	for _, b := range CheckHistories(recorded, declared, BinaryVersion()) {
		names = append(names, b.Feature)
	}
	if got := strings.Join(names, " "); got != "A B C D" {
		t.Errorf("breaches of %s", got)
	}
}

func TestParsePhase(t *testing.T) {
	for _, s := range []string{"1.36 beta default=true", "1.36 deprecated default=false locked", "1.37 stable default=true locked min-compatibility=1.36", "1.37 removed default=false", "1.37 beta default=true min-compatibility=1.37"} {
		if p, err := ParsePhase(s); err != nil || p.String() != s {
			t.Errorf("%q is read as %q (%v)", s, p, err)
		}
	}
	for _, s := range []string{"", "1.36", "1.36 beta", "new beta default=true", "1.36 gamma default=true", "1.36 beta default=maybe", "1.36 beta locked default=true", "1.36 beta default=true min-compatibility=x", "1.36 beta default=true locked locked"} {
		if p, err := ParsePhase(s); err == nil {
			t.Errorf("%q is read as %q", s, p)
		}
	}
}
