// Package agree decides on StorageVersions (KEP-2339): which of the servers' reports stand,
// whether all servers agree on an encoding, when the epoch rises, which reports belong to
// servers that are gone, and how a write goes on after its StorageVersion has changed. It is
// pure: values in, values out, no clock, I/O or goroutine.
package agree

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// ServerID names one registration of one API server process, e.g.
// "apiserver-8f3c…". It is new for every registration.
type ServerID string

// Encoding is how a server writes a resource: the group/version, as schema.GroupVersion
// prints it ("networking.k8s.io/v1", and "v1" in the core group), and where the server
// encrypts it a plus sign and the Seal. Servers that write one version with different keys
// write different encodings, and are treated as servers that write different versions.
type Encoding string

// sealMark stands between the group/version, which never contains it, and the Seal.
const sealMark = "+"

// Plain returns the encoding without its Seal: the group/version.
func (e Encoding) Plain() Encoding {
	plain, _, _ := strings.Cut(string(e), sealMark)
	return Encoding(plain)
}

// Group returns the group: "apps" of "apps/v1", "" of "v1".
func (e Encoding) Group() string {
	group, _, found := strings.Cut(string(e.Plain()), "/")
	if !found {
		return ""
	}
	return group
}

// Version returns the version: "v1" of "apps/v1".
func (e Encoding) Version() string {
	plain := string(e.Plain())
	return plain[strings.LastIndex(plain, "/")+1:]
}

// Seal returns the encryption key of values in this encoding; empty if they are not encrypted.
func (e Encoding) Seal() Seal {
	_, seal, _ := strings.Cut(string(e), sealMark)
	return Seal(seal)
}

// Sealed returns the same group/version encrypted with s. Unknown stays as it is.
func (e Encoding) Sealed(s Seal) Encoding {
	if plain := e.Plain(); s == "" || plain == Unknown {
		return plain
	}
	return e.Plain() + sealMark + Encoding(s)
}

// Seal names an encryption key: "<provider>:<version>:<key>:<fingerprint>", for example
// "aescbc:v1:key1:5bd1f0a2c3e49b77". The fingerprint distinguishes secrets with the same name. The empty Seal means
// that values are not encrypted.
type Seal string

// Key returns the Seal without its fingerprint: the part that encrypted values begin with.
func (s Seal) Key() string {
	i := strings.LastIndexByte(string(s), ':')
	return string(s)[:max(i, 0)]
}

// UnknownKey is the fingerprint in a Seal while the server does not know yet which key it will encrypt with, because
// it has not reached the KMS plugin that decides. No value has it.
const UnknownKey = "?"

// Known reports whether the Seal names the key.
func (s Seal) Known() bool { return !strings.HasSuffix(string(s), ":"+UnknownKey) }

// Unknown is the encoding of objects whose encoding is not known (KEP-2343, "API design"). There is never agreement on
// it.
const Unknown Encoding = "Unknown"

// Report is one server's entry in a StorageVersion (KEP-2339, "Resource Version API").
// Invariant: Decodable includes Encoding's group/version and every one of Served.
type Report struct {
	Server    ServerID
	Encoding  Encoding
	Decodable []string
	Served    []string
	// Silence is the reason for which another server made this report for a server that does
	// not report. It is not stored: a report that was read has none, and Equal ignores it.
	Silence Silence
}

// Validate says which part of the Report's invariant does not hold.
func (r Report) Validate() error {
	if r.Server == "" {
		return errors.New("a report needs an apiServerID")
	}
	if r.Encoding == "" {
		return fmt.Errorf("the report of %s needs an encodingVersion", r.Server)
	}
	if !slices.Contains(r.Decodable, string(r.Encoding.Plain())) {
		return fmt.Errorf("%s encodes %s but cannot decode it: decodableVersions must include the encodingVersion", r.Server, r.Encoding)
	}
	for _, served := range r.Served {
		if !slices.Contains(r.Decodable, served) {
			return fmt.Errorf("%s serves %s but cannot decode it: decodableVersions must include all servedVersions", r.Server, served)
		}
	}
	return nil
}

// String prints the report as "server:encoding".
func (r Report) String() string { return fmt.Sprintf("%s:%s", r.Server, r.Encoding) }

func (r Report) equal(o Report) bool {
	return r.Server == o.Server && r.Encoding == o.Encoding &&
		slices.Equal(r.Decodable, o.Decodable) && slices.Equal(r.Served, o.Served)
}

// Validate reports the first report that is invalid or whose server has another one.
func Validate(reports []Report) error {
	for i, r := range reports {
		if err := r.Validate(); err != nil {
			return err
		}
		if _, another := Of(reports[:i], r.Server); another {
			return fmt.Errorf("%s has more than one report", r.Server)
		}
	}
	return nil
}

// Merge returns the reports that a server writes back: its own put in, and the others
// settled (KEP-2339, "Updating StorageVersion"). The order of the reports that stay is kept.
func Merge(reports []Report, own Report, participants Participants) []Report {
	merged := make([]Report, 0, len(reports)+1)
	put := false
	for _, r := range reports {
		switch {
		case r.Server != own.Server:
			merged = append(merged, r)
		case !put:
			merged = append(merged, own)
			put = true
		}
	}
	if !put {
		merged = append(merged, own)
	}
	return settle(merged, participants, own.Server)
}

// Settle returns the reports that stand with these participants: it drops reports of servers that are not
// participants, and adds a report of Unknown for each participant that is silent or owes a report.
func Settle(reports []Report, participants Participants) []Report {
	return settle(reports, participants, "")
}

// settle is Settle, and keeps the report of self in any case.
func settle(reports []Report, participants Participants, self ServerID) []Report {
	settled := make([]Report, 0, len(reports)+len(participants.silent))
	missing := sets.KeySet(participants.silent)
	owing := participants.owing.Clone()
	for _, r := range reports {
		switch {
		case missing.Has(r.Server):
			missing.Delete(r.Server)
			settled = append(settled, participants.silence(r.Server))
		case owing.Has(r.Server) && r.Encoding == Unknown: // others made it, before
			owing.Delete(r.Server)
			settled = append(settled, participants.silence(r.Server))
		case r.Server == self, participants.reporting.Has(r.Server):
			owing.Delete(r.Server)
			settled = append(settled, r)
		}
	}
	for _, id := range sets.List(missing.Union(owing)) {
		settled = append(settled, participants.silence(id))
	}
	return settled
}

// Made returns the reports that servers made themselves.
func Made(reports []Report) []Report {
	return slices.DeleteFunc(slices.Clone(reports), func(r Report) bool { return r.Encoding == Unknown })
}

// Silent returns the servers for which others report Unknown.
func Silent(reports []Report) []ServerID {
	var silent []ServerID
	for _, r := range reports {
		if r.Encoding == Unknown {
			silent = append(silent, r.Server)
		}
	}
	return silent
}

// Without returns the reports of everyone but gone.
func Without(reports []Report, gone ServerID) []Report {
	return slices.DeleteFunc(slices.Clone(reports), func(r Report) bool { return r.Server == gone })
}

// Of returns the server's report.
func Of(reports []Report, server ServerID) (Report, bool) {
	i := slices.IndexFunc(reports, func(r Report) bool { return r.Server == server })
	if i < 0 {
		return Report{}, false
	}
	return reports[i], true
}

// Common returns the encoding that all reports name: the agreement. There is none
// without reports, none while a silent server is a participant, and none while servers do
// not know with which key they encrypt, which may be different ones.
func Common(reports []Report) (Encoding, bool) {
	encodings := Encodings(reports)
	if len(encodings) != 1 || encodings[0] == Unknown || !encodings[0].Seal().Known() {
		return "", false
	}
	return encodings[0], true
}

// Encodings returns the set of reported encodings, sorted.
func Encodings(reports []Report) []Encoding {
	encodings := make([]Encoding, 0, len(reports))
	for _, r := range reports {
		if !slices.Contains(encodings, r.Encoding) {
			encodings = append(encodings, r.Encoding)
		}
	}
	slices.Sort(encodings)
	return encodings
}

// Equal says whether a and b are the same reports in the same order.
func Equal(a, b []Report) bool { return slices.EqualFunc(a, b, Report.equal) }

// ErrSuperseded is returned for a write by a store whose encoding its server does
// not report any more: it has to be run again on the newest store.
var ErrSuperseded = errors.New("the store's encoding is no longer the one this server reports")

// ErrFenced says that a StorageVersion no longer permits a write that was begun under it.
var ErrFenced = errors.New("the StorageVersion has moved")

// Verdict is the next step of a write that failed because its StorageVersion has changed.
type Verdict int

const (
	// Lost means that the server's report is missing: it has no permission to write.
	Lost Verdict = iota
	// Superseded means that the server reports another encoding than the store's.
	Superseded
	// Proceed means that the server's report for the encoding still stands, at a newer revision.
	Proceed
)

// String names the verdict.
func (v Verdict) String() string {
	switch v {
	case Proceed:
		return "proceed"
	case Superseded:
		return "superseded"
	default:
		return "lost"
	}
}

// Judge decides on a write of server self in encoding enc, from the reports that
// stood when its transaction failed.
func Judge(reports []Report, self ServerID, enc Encoding) Verdict {
	own, ok := Of(reports, self)
	switch {
	case !ok:
		return Lost
	case own.Encoding != enc:
		return Superseded
	default:
		return Proceed
	}
}

// Join prints encodings for people, in the order given.
func Join(encodings []Encoding) string {
	parts := make([]string, len(encodings))
	for i, e := range encodings {
		parts[i] = string(e)
	}
	return strings.Join(parts, ",")
}
