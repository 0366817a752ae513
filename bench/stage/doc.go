// Package stage runs what is measured: etcds and API servers, each a process of its own
// that the measuring program starts from its own binary. Everything is on loopback and
// in one temporary directory, and ends with the program.
package stage
