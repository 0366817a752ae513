// Command conformance runs Kubernetes' own e2e suite against Concord's servers, with the stock
// kube-apiserver of the same release as the control. The rule is that a spec that passes on stock
// passes on ours. It exits with 1 if the rule is broken.
//
//	go run ./conformance [-release 1.37|1.36] [-planes stock,kube-apiserver,server] [-quick] [-dir DIR]
//
// It runs the specs that need neither nodes nor pods. Those that do, and those that a control
// plane without pods has no resources for, are listed by name and with a reason in
// skipped-<release>.txt. All others of the suite are run, so that a new one is never left out by
// accident. While the suite runs against a server of ours, the storage version of a CRD with
// objects changes every 20 s, or as soon as Concord has migrated them if that takes longer.
//
// With -release 1.36 the suite is that of Kubernetes 1.36, and all servers, stock as well, emulate
// 1.36: the cross-release test of KEP-4330.
//
// Each run leaves report.json, the servers' logs and their data in DIR/<release>/<plane>. Planes
// that are not run are judged by the report that an earlier run has left there.
package main
