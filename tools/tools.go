// Package tools is the module whose go.mod pins the programs that check the sources; none of them
// is a dependency of the module that they check.
package tools
