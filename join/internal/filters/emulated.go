package filters

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/warning"

	"github.com/concord-dev/concord/compat"
)

// WithEmulation adapts warnings, and metrics if they are served, to the emulated release: there is no warning about a
// later deprecation, and when a CEL function is refused, the message says that the min compatibility version decides
// which functions exist. It has to come after the filter that creates the recorder of warnings.
func WithEmulation(next http.Handler, window compat.Window, metrics bool) http.Handler {
	hint := fmt.Sprintf("which functions CEL expressions may use follows the min compatibility version, %s here: one that came later is refused (--min-compatibility-version)", window.MinCompatibility)
	older := window.MinCompatibility.LessThan(compat.BinaryVersion())
	var later laterDeprecated
	if metrics && window.Emulation.LessThan(compat.BinaryVersion()) {
		next = later.withMetrics(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		forward := warnings(func(agent, text string) {
			if deprecatedAfter(text, window.Emulation) {
				later.add(r)
				return
			}
			warning.AddWarning(ctx, agent, text)
		})
		if older && (r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch) {
			h := &hinting{ResponseWriter: w, hint: func() { warning.AddWarning(ctx, "", hint) }}
			next.ServeHTTP(responsewriter.WrapForHTTP1Or2(h), r.WithContext(warning.WithWarningRecorder(ctx, forward)))
			h.end()
			return
		}
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

// undeclared is CEL's error for a function that its environment does not have.
var undeclared = []byte("undeclared reference to")

// hinting adds a warning to an answer that refuses an object because of a name that CEL does
// not know. The header waits for the first bytes of the body, a flush or the end.
type hinting struct {
	http.ResponseWriter
	hint func()
	// code is the status of a refusal that is still to be written; 0: there is none.
	code int
}

var (
	_ responsewriter.UserProvidedDecorator = (*hinting)(nil)
	_ http.Flusher                         = (*hinting)(nil)
)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (h *hinting) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (h *hinting) WriteHeader(code int) {
	if code == http.StatusUnprocessableEntity && h.code == 0 {
		h.code = code
		return
	}
	h.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (h *hinting) Write(body []byte) (int, error) {
	if h.code != 0 {
		if bytes.Contains(body, undeclared) {
			h.hint()
		}
		h.end()
	}
	return h.ResponseWriter.Write(body)
}

// Flush implements http.Flusher.
func (h *hinting) Flush() {
	h.end()
	if inner, ok := h.ResponseWriter.(http.Flusher); ok {
		inner.Flush()
	}
}

// end writes the status that is still to be written.
func (h *hinting) end() {
	if h.code != 0 {
		h.ResponseWriter.WriteHeader(h.code)
		h.code = 0
	}
}
