// Package builtin holds the resources that Concord serves from Go types: their scheme,
// strategies, printers, REST storage and the lifecycle of each of their versions.
//
// Every resource has one store, shared by all of its versions. The newest version's Go
// types also hold its objects in memory; the other versions have the same layout, which
// is checked when the scheme is built. What is served and what is stored is decided by a
// plan (package compat) before anything is installed.
package builtin
