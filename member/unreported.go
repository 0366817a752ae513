package member

import "time"

const (
	// unreportedAfter is after how long a resource that this server has not reported is worth a line
	// in the log, and unreportedAgain how often.
	unreportedAfter, unreportedAgain = 10 * time.Second, time.Minute
)

// unreported remembers for how long there have been resources that this server has not reported.
type unreported struct {
	since, said time.Time
}

// sayUnreported logs which resources this server has not been able to report for a while, and why,
// if it is time to.
func (m *Member) sayUnreported() {
	var lacking []string
	if !m.silent() && !m.AllReported() {
		for _, s := range m.Snapshot() {
			if s.Wanted != "" && !s.Open {
				lacking = append(lacking, s.String())
			}
		}
	}
	if m.unreported.due(m.cfg.Clock.Now(), len(lacking) > 0) {
		m.cfg.Logger.Error(nil, "Resources are not reported yet, so that this server may not write them and no agreement includes it", "resources", lacking)
	}
}

// due records whether resources lack a report, and reports whether that should be logged.
func (u *unreported) due(now time.Time, lacking bool) bool {
	switch {
	case !lacking:
		*u = unreported{}
		return false
	case u.since.IsZero():
		u.since = now
		return false
	case now.Sub(u.since) < unreportedAfter, !u.said.IsZero() && now.Sub(u.said) < unreportedAgain:
		return false
	}
	u.said = now
	return true
}
