// Package verdict answers whether something may be done to a cluster without stored objects
// becoming unreadable: starting another release, applying or deleting a
// CustomResourceDefinition. It decides on values that were read elsewhere, and says the answer
// to people and to CI. A server that starts decides by the same code (package compat).
package verdict
