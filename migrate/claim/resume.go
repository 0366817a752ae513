package claim

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// token is the content of a migration's status.continueToken: a position, and the values that
// must not have changed for it to count. While the StorageVersion stays at one epoch every write is
// in the encoding, so that what is done stays done.
type token struct {
	// Target is the StorageVersion, its epoch and the encoding.
	Target string `json:"target"`
	// CRD is the definition by which the objects before the position were converted.
	CRD CRD `json:"crd,omitzero"`
	// API says that the position belongs to the API engine.
	API      bool   `json:"api,omitempty"`
	Position string `json:"position"`
	// Conflicts is the number counted when the token was written; the token is valid with any number of conflicts.
	Conflicts int64 `json:"conflicts,omitempty"`
}

func (t token) String() string {
	raw, err := json.Marshal(t)
	if err != nil {
		return "" // strings and numbers always have a form in JSON
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

func parseToken(text string) (t token, ok bool) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) == 0 {
		return token{}, false
	}
	return t, json.Unmarshal(raw, &t) == nil
}

// token is that of a position in this work.
func (w *work) token(position string) token {
	t := token{Target: w.target.String(), API: w.engine.name == migrationv1alpha1.EngineAPI, Position: position}
	if w.pin != nil {
		t.CRD = *w.pin
	}
	return t
}

// saved is the status' token; none if it was made for another epoch, encoding or definition.
func (w *work) saved() token {
	saved, ok := parseToken(w.m.Status.ContinueToken)
	valid := w.token(saved.Position)
	valid.Conflicts = saved.Conflicts
	if !ok || saved != valid {
		return token{}
	}
	return saved
}

// position returns where the status says that a rewrite can resume; empty for the beginning.
func (w *work) position() string { return w.saved().Position }

// resume takes over what the status says of the objects before the position.
func (w *work) resume() {
	w.failures, w.base, w.done = nil, 0, 0
	w.counted = Progress{FailedByReason: map[migrationv1alpha1.MigrationFailureReason]int64{}}
	saved := w.saved()
	if w.resumed = saved.Position != ""; !w.resumed {
		return
	}
	w.counted.Conflicts = saved.Conflicts
	w.failures = slices.Clone(w.m.Status.Failures)
	if p := w.m.Status.Progress; p != nil {
		w.base, w.done = p.Done, p.Done // base at most: the number it reports first may be less
		w.counted.Done = p.Done
		maps.Copy(w.counted.FailedByReason, p.FailedByReason)
	}
}

// advance makes the newest checkpoint the place where the next rewrite goes on.
func (w *work) advance() {
	if w.last != nil {
		w.show(w.m)
		w.failures, w.last = w.m.Status.Failures, nil
	}
}

// show writes the newest progress into a status. Objects that were shown as done stay so,
// although a rewrite that goes on begins a little before that.
func (w *work) show(m *migrationv1alpha1.StorageVersionMigration) {
	if w.last == nil {
		return
	}
	p := w.counts(*w.last, w.rate(*w.last))
	w.done = max(p.Done, min(w.done, p.Total-p.Failed))
	p.Done = w.done
	m.Status.Progress, m.Status.ContinueToken = p, ""
	if position := w.last.Checkpoint.Position; position != "" {
		t := w.token(position)
		t.Conflicts = max(w.counted.Conflicts, w.last.Conflicts)
		m.Status.ContinueToken = t.String()
	}
	m.Status.Failures = w.named(w.last.Checkpoint.Failures)
}

// named returns the first failures of the migration, including those that this server met. A migration that began
// again may meet failures that are already named.
func (w *work) named(met []Failure) []migrationv1alpha1.MigrationFailure {
	failures := slices.Clone(w.failures)
	known := sets.New[types.NamespacedName]()
	for _, f := range failures {
		known.Insert(types.NamespacedName{Namespace: f.Namespace, Name: f.Name})
	}
	for _, f := range met {
		if !known.Has(types.NamespacedName{Namespace: f.Namespace, Name: f.Name}) {
			failures = append(failures, f)
		}
	}
	return failures[:min(len(failures), migrationv1alpha1.MaxFailures)]
}
