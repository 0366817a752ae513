// Package stage runs the etcds and API servers that are measured, each a process of its own
// that the measuring program starts from its own binary. Everything is on loopback and
// in one temporary directory, and ends with the program.
package stage
