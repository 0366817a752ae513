// Package figures holds the results of a benchmark: samples, the rows made of them with
// their targets, and the table that is published. It measures nothing itself.
package figures
