// Package dashboard is a page that shows how a cluster is and follows it: the answers of package
// status, live. It only reads. A browser gets it from "kubectl concord dashboard", with the
// user's own credentials, or from a server at /concord/.
//
// The server part watches the cluster while somebody looks (source.go), makes a picture of
// the cluster (picture.go, which decides and does no I/O) and sends the changes of it to
// each viewer as server-sent events (stream.go). The page is plain HTML, CSS and web components
// (page/), embedded, and loads nothing from elsewhere.
package dashboard
