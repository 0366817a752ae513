// Package e2e holds the end-to-end tests: real server processes on a real etcd, used the
// way their users do, killed, paused and cut off from their store. Package cluster runs
// the processes, load writes to them, and audit judges every value that reaches etcd by
// the protocol's invariants.
//
// The quick tests always run. The slow ones, which wait for Leases to expire and servers
// to be rolled, run with
//
//	go test ./e2e -slow -timeout 30m
package e2e
