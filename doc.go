// Package concord is a highly available, Kubernetes-style API server whose stored data
// moves between API versions safely and by itself. See README.md and ARCHITECTURE.md;
// the programs are in cmd.
package concord
