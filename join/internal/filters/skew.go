package filters

import (
	"net/http"
	"sync"

	"github.com/go-logr/logr"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/compat"
)

// maxOffenders is how many offenders are logged in the life of a process.
const maxOffenders = 1024

var skewRequests = metrics.NewCounterVec(&metrics.CounterOpts{
	Namespace: "concord",
	Subsystem: "component_skew",
	Name:      "requests_total",
	Help: "Requests from components outside the version skew that this server allows, by direction: older, newer, or unknown for those that " +
		"do not tell their version, have no allowed skew (component other) or do not tell what they are (component unknown).",
	StabilityLevel: metrics.ALPHA,
}, []string{"component", "direction"})

// Registerables are the metrics of this package.
func Registerables() []metrics.Registerable { return []metrics.Registerable{skewRequests} }

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(Registerables()...) })

// WithSkew counts the requests of components outside the skew that the window allows, and
// logs each such component once (KEP-4330, "Risk: Unintended and out-of-allowance version
// skew"). No request is refused. It belongs behind authentication.
func WithSkew(handler http.Handler, window compat.Window) http.Handler {
	register()
	count := func(c compat.Component, v compat.Verdict) { skewRequests.WithLabelValues(string(c), v.String()).Inc() }
	return newSkewFilter(window, count, klog.Background().WithName("skew")).wrap(handler)
}

// skewFilter judges the senders of requests.
type skewFilter struct {
	window compat.Window
	count  func(compat.Component, compat.Verdict)
	logger logr.Logger

	mu sync.Mutex
	// Invariant: len(offenders) <= maxOffenders.
	offenders map[offender]struct{}
}

// offender is a component, version and user, for which one log message is written.
type offender struct {
	component compat.Component
	version   string
	user      string
}

func newSkewFilter(window compat.Window, count func(compat.Component, compat.Verdict), logger logr.Logger) *skewFilter {
	return &skewFilter{window: window, count: count, logger: logger, offenders: map[offender]struct{}{}}
}

func (f *skewFilter) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.observe(r)
		next.ServeHTTP(w, r)
	})
}

func (f *skewFilter) observe(r *http.Request) {
	if FromLoopback(r) { // Kubernetes' own code in this process does not tell its version
		return
	}
	sender := compat.Identify(r.Header.Get(compat.ComponentVersionHeader), r.UserAgent())
	verdict := compat.Judge(sender.Component, sender.Version, f.window)
	if verdict == compat.Within {
		return
	}
	f.count(sender.Component, verdict)
	if verdict != compat.Unknown {
		f.log(sender, r)
	}
}

// log names an offender the first time it offends.
func (f *skewFilter) log(sender compat.Identity, r *http.Request) {
	who := offender{component: sender.Component, version: sender.Version.String()}
	if u, ok := apirequest.UserFrom(r.Context()); ok {
		who.user = u.GetName()
	}
	first, last := f.admit(who)
	if !first {
		return
	}
	allowed, _ := compat.Skew(sender.Component, f.window)
	f.logger.Info("Requests come from a component outside the allowed version skew: bring it, or this server, to an allowed version",
		"component", who.component, "version", who.version, "allowed", allowed.String(), "user", who.user)
	if last {
		f.logger.Info("No more components outside the allowed version skew will be named; they are still counted", "named", maxOffenders)
	}
}

// admit says whether this is the offender's first time, and whether no other can be
// remembered after it.
func (f *skewFilter) admit(who offender) (first, last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.offenders[who]; known || len(f.offenders) >= maxOffenders {
		return false, false
	}
	f.offenders[who] = struct{}{}
	return true, len(f.offenders) == maxOffenders
}
