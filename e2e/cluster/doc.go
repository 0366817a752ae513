// Package cluster runs the processes of a Concord cluster for tests: an etcd and any
// number of servers, each a process of its own that can be killed and paused. Whatever a
// test does, nothing is left running, and the output of the processes is shown if it fails.
package cluster
