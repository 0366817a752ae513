// Package embedded runs an etcd of one member inside a process. Only the process's own user
// reaches it: clients by a unix socket in a private directory, and nobody by its peer port,
// which wants certificates of a CA whose key never leaves the process.
package embedded
