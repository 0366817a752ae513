// Package prose has the small words of sentences about numbers and lists.
package prose

import (
	"fmt"
	"strings"
)

// named is how many resources or servers a sentence names.
const named = 3

// Some names the first of a list, and how many more there are.
func Some(list []string) string {
	if more := len(list) - named; more > 0 {
		return strings.Join(list[:named], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(list, ", ")
}

// Count is a number with its noun.
func Count(n int, what string) string {
	return fmt.Sprintf("%d %s", n, Plural(n, what, what+"s"))
}

// Objects is a number of objects.
func Objects(n int64) string { return Count(int(n), "object") }

// Is is "is" or "are".
func Is(n int) string { return Plural(n, "is", "are") }

// Plural is the word for one, or that for many.
func Plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
