package status

import (
	"slices"
	"strings"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/status/cause"
)

// rejected describes objects that the API server can read but does not accept as they are. The advice depends on who
// refuses them.
func rejected(r *resource, m *migrationv1alpha1.StorageVersionMigration, of, kept string, n int64, named []migrationv1alpha1.MigrationFailure) Problem {
	var told []migrationv1alpha1.MigrationFailure
	var texts, advice []string
	for _, f := range named {
		text, do := cause.Refused(r.String(), r.crd != nil, f.Message, of, kept)
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
		if !slices.Contains(advice, do) {
			advice = append(advice, do)
		}
		f.Message = cause.Nameless(f.Name, f.Message)
		told = append(told, f)
	}
	if len(named) == 0 {
		text, do := cause.Refused(r.String(), r.crd != nil, "", of, kept)
		texts, advice = []string{text}, []string{do}
	}
	advice = slices.DeleteFunc(slices.Clone(advice), func(do string) bool { // it says less than another one does
		return slices.ContainsFunc(advice, func(more string) bool { return more != do && strings.HasPrefix(more, do) })
	})
	if len(texts) > 1 { // the objects' own messages tell them apart
		texts = []string{kept + ": they are not taken as they are"}
	}
	return ofObjects(r, m, n, told, texts[0], strings.Join(advice, "; "))
}
