// Package embedded runs an etcd of one member inside a process. Only the process's own user can reach it: clients use
// a unix socket in a private directory, and there is no peer port.
package embedded
