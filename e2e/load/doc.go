// Package load is a client that writes all the time, through all servers, and remembers
// the acknowledged writes. Each write is marked (audit.WriteAnnotation), so that the audit
// can say afterwards what became of it.
package load
