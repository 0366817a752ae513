package dashboard

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"slices"
	"strings"
)

// Local is a Handler on the loopback interface of a machine that others use, too, with one user's credentials: only
// those who know the URL may open it. The token is in the path and not in a cookie, because a browser sends cookies to
// other ports of the same address as well.
type Local struct {
	pages http.Handler
	hosts []string
	token string
}

// NewLocal returns the pages as they are served at a TCP address of the loopback.
func NewLocal(pages http.Handler, at net.Addr) *Local {
	host, port, _ := net.SplitHostPort(at.String()) // a TCP address has both
	return &Local{pages: pages, hosts: []string{net.JoinHostPort(host, port), net.JoinHostPort("localhost", port)}, token: rand.Text()}
}

// URL is where the page is.
func (l *Local) URL() string { return "http://" + l.hosts[0] + "/" + l.token + "/" }

// ServeHTTP implements http.Handler. A Host header other than the address is a name that somebody has pointed here
// (DNS rebinding); another Origin belongs to a page of another site.
func (l *Local) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if origin := r.Header.Get("Origin"); !slices.Contains(l.hosts, r.Host) || origin != "" && origin != "http://"+r.Host {
		http.Error(w, "this page is not for other sites", http.StatusForbidden)
		return
	}
	token, below, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if subtle.ConstantTimeCompare([]byte(token), []byte(l.token)) != 1 {
		http.Error(w, "the URL with its token is where kubectl concord dashboard printed it", http.StatusForbidden)
		return
	}
	r2 := r.Clone(r.Context())
	r2.URL.Path = "/" + below
	l.pages.ServeHTTP(w, r2)
}
