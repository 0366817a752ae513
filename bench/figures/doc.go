// Package figures holds what a benchmark found: samples, the rows made of them with
// their targets, and the table that is published. It measures nothing itself.
package figures
