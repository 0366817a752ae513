package agree

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	v1      Encoding = "apps/v1"
	v1beta1 Encoding = "apps/v1beta1"
	// v1, encrypted with one key and with another.
	sealedA Encoding = "apps/v1+aescbc:v1:a:1"
	sealedB Encoding = "apps/v1+aescbc:v1:b:2"
)

func silence(id ServerID) Report { return Participants{}.silence(id) }

// off maps each of the servers to the reason why it does not report: its feature gate
// StorageVersionAPI is off.
func off(ids ...ServerID) map[ServerID]Silence {
	silent := map[ServerID]Silence{}
	for _, id := range ids {
		silent[id] = GateOff
	}
	return silent
}

func report(server ServerID, e Encoding) Report {
	return Report{Server: server, Encoding: e, Decodable: []string{string(v1beta1), string(v1)}, Served: []string{string(e.Plain())}}
}

func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		name    string
		reports []Report
		want    string
	}{
		{name: "valid", reports: []Report{report("a", v1), report("b", v1beta1), report("c", sealedA)}},
		{
			name:    "The encodingVersion must be included in the decodableVersions.",
			reports: []Report{{Server: "a", Encoding: v1, Decodable: []string{string(v1beta1)}}},
			want:    "must include the encodingVersion",
		},
		{
			name:    "DecodableVersions must include all ServedVersions.",
			reports: []Report{{Server: "a", Encoding: v1, Decodable: []string{string(v1)}, Served: []string{string(v1beta1)}}},
			want:    "must include all servedVersions",
		},
		{name: "unique server IDs", reports: []Report{report("a", v1), report("a", v1)}, want: "more than one report"},
		{name: "no server", reports: []Report{report("", v1)}, want: "needs an apiServerID"},
		{name: "no encoding", reports: []Report{report("a", "")}, want: "needs an encodingVersion"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Validate(tc.reports)
			if tc.want == "" && err != nil {
				t.Fatalf("Validate: %v", err)
			}
			if tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Fatalf("Validate: got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestMerge(t *testing.T) {
	for _, tc := range []struct {
		name         string
		reports      []Report
		own          Report
		participants []ServerID
		silent       []ServerID
		want         []Report
	}{
		{
			name: "creates ... the .status.serverStorageVersions",
			own:  report("a", v1), participants: []ServerID{"a"},
			want: []Report{report("a", v1)},
		},
		{
			name:    "or updates",
			reports: []Report{report("a", v1beta1), report("b", v1)},
			own:     report("a", v1), participants: []ServerID{"a", "b"},
			want: []Report{report("a", v1), report("b", v1)},
		},
		{
			name:    "removes .status.serverStorageVersions entries whose server ID is not present in the list of participating API servers, such entries are stale",
			reports: []Report{report("gone", v1beta1), report("b", v1)},
			own:     report("a", v1), participants: []ServerID{"a", "b"},
			want: []Report{report("b", v1), report("a", v1)},
		},
		{
			name:    "reports Unknown for servers that do not report",
			reports: []Report{report("b", v1)},
			own:     report("a", v1), participants: []ServerID{"a", "b"}, silent: []ServerID{"y", "x"},
			want: []Report{report("b", v1), report("a", v1), silence("x"), silence("y")},
		},
		{
			name:    "and drops that with them",
			reports: []Report{silence("x"), report("a", v1), silence("y")},
			own:     report("a", v1), participants: []ServerID{"a"}, silent: []ServerID{"y"},
			want: []Report{report("a", v1), silence("y")},
		},
		{
			name:    "whatever somebody wrote for one that does not report",
			reports: []Report{report("x", v1), report("x", v1beta1)},
			own:     report("a", v1), participants: []ServerID{"a"}, silent: []ServerID{"x"},
			want: []Report{silence("x"), report("a", v1)},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Merge(tc.reports, tc.own, NewParticipants(tc.participants, off(tc.silent...)))
			if !Equal(got, tc.want) {
				t.Errorf("Merge: got %v, want %v", got, tc.want)
			}
			if err := Validate(got); err != nil {
				t.Errorf("Merge: %v", err)
			}
			if again := Merge(got, tc.own, NewParticipants(tc.participants, off(tc.silent...))); !Equal(again, got) {
				t.Errorf("Merge again: got %v, want %v", again, got)
			}
		})
	}
}

func TestCommon(t *testing.T) {
	for _, tc := range []struct {
		name    string
		reports []Report
		want    Encoding
		agreed  bool
	}{
		{name: "If so, sets the version as the status.commonEncodingVersion.", reports: []Report{report("a", v1), report("b", v1)}, want: v1, agreed: true},
		{name: "If not, sets the status.commonEncodingVersion to empty.", reports: []Report{report("a", v1), report("b", v1beta1)}},
		{name: "one version, encrypted with two keys", reports: []Report{report("a", sealedA), report("b", sealedB)}},
		{name: "nobody reports"},
		{name: "one that does not report agrees with nobody", reports: []Report{report("a", v1), silence("x")}},
		{name: "and not with its like", reports: []Report{silence("x"), silence("y")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, agreed := Common(tc.reports)
			if got != tc.want || agreed != tc.agreed {
				t.Errorf("Common: got %q, %v, want %q, %v", got, agreed, tc.want, tc.agreed)
			}
		})
	}
}

func TestSettleAndWithout(t *testing.T) {
	reports := []Report{report("a", v1), report("b", v1), report("c", v1beta1)}
	if got, want := Settle(reports, NewParticipants([]ServerID{"a", "c"}, nil)), []Report{reports[0], reports[2]}; !Equal(got, want) {
		t.Errorf("Settle: got %v, want %v", got, want)
	}
	if got, want := Settle(reports, NewParticipants([]ServerID{"a"}, off("x"))), []Report{reports[0], silence("x")}; !Equal(got, want) {
		t.Errorf("Settle: got %v, want %v", got, want)
	} else if made := Made(got); !Equal(made, reports[:1]) {
		t.Errorf("Made: got %v, want %v", made, reports[:1])
	} else if silent := Silent(got); !slices.Equal(silent, []ServerID{"x"}) {
		t.Errorf("Silent: got %v, want x", silent)
	}
	why := NewParticipants([]ServerID{"a"}, map[ServerID]Silence{"x": GateOff, "y": Stock})
	if got := Settle([]Report{silence("y")}, why); len(got) != 2 || got[0].Silence != Stock || got[1].Silence != GateOff {
		t.Errorf("Settle: got %+v, want the reasons of y and x", got)
	}
	if got := why.Silent(); !slices.Equal(got, []ServerID{"x", "y"}) {
		t.Errorf("Silent: got %v, want x and y", got)
	}
	if got, want := Without(reports, "b"), []Report{reports[0], reports[2]}; !Equal(got, want) {
		t.Errorf("Without: got %v, want %v", got, want)
	}
	if len(reports) != 3 || reports[1].Server != "b" {
		t.Errorf("the argument was changed: %v", reports)
	}
}

func TestJudge(t *testing.T) {
	reports := []Report{report("a", v1), report("b", v1beta1), report("sealing", sealedA)}
	for _, tc := range []struct {
		self ServerID
		enc  Encoding
		want Verdict
	}{
		{"a", v1, Proceed},
		{"a", v1beta1, Superseded},
		{"b", v1, Superseded},
		{"c", v1, Lost},
		{"sealing", sealedA, Proceed},
		{"sealing", sealedB, Superseded}, // with a key that is not reported any more
	} {
		if got := Judge(reports, tc.self, tc.enc); got != tc.want {
			t.Errorf("Judge(%s, %s) = %v, want %v", tc.self, tc.enc, got, tc.want)
		}
	}
}

func TestHistory(t *testing.T) {
	var h History
	for _, step := range []struct {
		reports []Report
		epoch   int64
		since1  []Encoding
	}{
		{[]Report{report("a", v1beta1)}, 1, nil},
		{[]Report{report("a", v1beta1), report("b", v1beta1)}, 1, nil},                // a join in the same encoding
		{[]Report{report("a", v1), report("b", v1beta1)}, 2, []Encoding{v1, v1beta1}}, // the rolling upgrade begins
		{[]Report{report("a", v1), report("b", v1)}, 3, []Encoding{v1, v1beta1}},
		{[]Report{report("a", v1beta1), report("b", v1beta1)}, 4, []Encoding{v1, v1beta1}}, // back again: v1 objects are left behind
		{nil, 5, []Encoding{v1, v1beta1}},
		{[]Report{report("a", v1beta1)}, 6, []Encoding{v1, v1beta1}},
		{[]Report{report("a", v1beta1), silence("x")}, 7, []Encoding{Unknown, v1, v1beta1}}, // the epoch rises when a silent server comes
		{[]Report{report("a", v1beta1)}, 8, []Encoding{Unknown, v1, v1beta1}},               // and when it goes
		{[]Report{report("a", sealedA)}, 9, []Encoding{Unknown, v1, sealedA, v1beta1}},
		{[]Report{report("a", sealedB)}, 10, []Encoding{Unknown, v1, sealedA, sealedB, v1beta1}}, // another key counts as another version
	} {
		before := h.String()
		next := h.Next(step.reports)
		if h.String() != before {
			t.Fatalf("Next changed its receiver: %s, was %s", h, before)
		}
		h = next
		if h.Epoch != step.epoch {
			t.Errorf("after %v: %s, want epoch %d", step.reports, h, step.epoch)
		}
		if got := h.Since(1); !slices.Equal(got, step.since1) {
			t.Errorf("after %v: since epoch 1: %v, want %v", step.reports, got, step.since1)
		}
	}
	if got, want := h.String(), "epoch 10 (Unknown@7 apps/v1@3 apps/v1+aescbc:v1:a:1@9 apps/v1+aescbc:v1:b:2@10 apps/v1beta1@8)"; got != want {
		t.Errorf("String: %q, want %q", got, want)
	}
}

// TestHistoryAgainstLog compares History with the slow, obvious record: all sets of
// encodings that were ever reported, one per epoch.
func TestHistoryAgainstLog(t *testing.T) {
	encodings := []Encoding{"g/v1", "g/v2", "g/v3"}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var h History
		log := [][]Encoding{nil}
		for range 30 {
			var reports []Report
			for s := range 3 {
				if rng.IntN(4) > 0 {
					reports = append(reports, report(ServerID(rune('a'+s)), encodings[rng.IntN(len(encodings))]))
				}
			}
			h = h.Next(reports)
			if now := Encodings(reports); !slices.Equal(now, log[len(log)-1]) {
				log = append(log, now)
			}
			if h.Epoch != int64(len(log)-1) {
				t.Fatalf("seed %d: epoch %d, the log has %d", seed, h.Epoch, len(log)-1)
			}
			if err := h.Validate(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			looked := rng.IntN(len(log))
			want := sets.New[Encoding]()
			for _, set := range log[looked+1:] {
				want.Insert(set...)
			}
			if got := h.Since(int64(looked)); !reflect.DeepEqual(sets.New(got...), want) {
				t.Fatalf("seed %d: since %d: %v, want %v", seed, looked, got, want)
			}
		}
	}
}

// TestHistoryForgets compares a History that has room for four encodings with one that has room for
// all. An encoding that was reported since an epoch is named in the answer, or Unknown stands for
// it; and there is no Unknown for an epoch since which nothing was forgotten.
func TestHistoryForgets(t *testing.T) {
	encodings := []Encoding{"g/v1", "g/v2", "g/v3", "g/v4", "g/v5", "g/v6", "g/v7", "g/v8"}
	room := 4 * (len(encodings[0]) + perEpoch)
	unnamed := 0
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var h, all History
		for range 40 {
			var reports []Report
			for s := range rng.IntN(4) {
				reports = append(reports, report(ServerID(rune('a'+s)), encodings[rng.IntN(len(encodings))]))
			}
			before := h.String()
			h, all = h.next(reports, room), all.Next(reports)
			if err := h.Validate(); err != nil {
				t.Fatalf("seed %d: %s, then %s: %v", seed, before, h, err)
			}
			if h.Epoch != all.Epoch || !slices.Equal(h.Reported(), all.Reported()) {
				t.Fatalf("seed %d: %s, and without a bound %s", seed, h, all)
			}
			if len(h.Last) > 4 {
				t.Fatalf("seed %d: %s has more than 4 encodings", seed, h)
			}
			for looked := range h.Epoch + 1 {
				got, want := sets.New(h.Since(looked)...), sets.New(all.Since(looked)...)
				if got.Has(Unknown) {
					unnamed++
					got.Delete(Unknown)
					if !want.IsSuperset(got) || looked >= h.Forgotten {
						t.Fatalf("seed %d: %s since %d: %v and Unknown, want of %v", seed, h, looked, got, want)
					}
					continue
				}
				if !got.Equal(want) {
					t.Fatalf("seed %d: %s since %d: %v, want %v", seed, h, looked, got, want)
				}
			}
		}
	}
	if unnamed == 0 {
		t.Error("nothing was ever forgotten")
	}
}

// TestHistoryKeepsWhatIsReported gives the History less room than the encodings need that servers
// report now: these are kept all the same.
func TestHistoryKeepsWhatIsReported(t *testing.T) {
	h := History{}.next([]Report{report("a", v1), report("b", v1beta1)}, 0)
	if got := h.Reported(); !slices.Equal(got, []Encoding{v1, v1beta1}) || h.Forgotten != 0 {
		t.Errorf("%s: reported %v", h, got)
	}
	h = h.next([]Report{report("b", v1)}, 0)
	if got, want := h.String(), "epoch 2 (apps/v1@2) forgotten up to 1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := h.Since(0); !slices.Equal(got, []Encoding{Unknown, v1}) {
		t.Errorf("since 0: %v", got)
	}
	if got := h.Since(1); !slices.Equal(got, []Encoding{v1}) {
		t.Errorf("since 1: %v", got)
	}
}
