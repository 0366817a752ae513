package filters

import (
	"net/http"
	"regexp"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/warning"
)

// WithEmulation leaves out warnings of deprecations that are later than the emulated release. It has to come after the
// filter that creates the recorder of warnings.
func WithEmulation(next http.Handler, emulation *version.Version) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		forward := warnings(func(agent, text string) {
			if !deprecatedAfter(text, emulation) {
				warning.AddWarning(ctx, agent, text)
			}
		})
		next.ServeHTTP(w, r.WithContext(warning.WithWarningRecorder(ctx, forward)))
	})
}

// warnings records them by a function.
type warnings func(agent, text string)

var _ warning.Recorder = warnings(nil)

// AddWarning implements warning.Recorder.
func (f warnings) AddWarning(agent, text string) { f(agent, text) }

var deprecatedIn = regexp.MustCompile(` is deprecated in v([0-9]+\.[0-9]+)\+`)

// deprecatedAfter reports whether a warning is about a deprecation in a later release.
func deprecatedAfter(text string, emulation *version.Version) bool {
	found := deprecatedIn.FindStringSubmatch(text)
	if found == nil {
		return false
	}
	release, err := version.ParseMajorMinor(found[1])
	return err == nil && release.GreaterThan(emulation)
}
