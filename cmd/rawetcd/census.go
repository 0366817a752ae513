package rawetcd

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/concord-dev/concord/cmd/program"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// namedInTable is how many unreadable keys the table names; JSON names all.
const namedInTable = 10

// PrintCensus prints a census as a table or as JSON. verified says that every value was decoded.
func PrintCensus(out io.Writer, census migratestore.Census, verified bool, output string) error {
	if output == "json" {
		return program.PrintJSON(out, census)
	}
	var encrypted int64
	rows := mixedFirst(census.Rows)
	for i, row := range rows {
		if i == 0 || row.Resource != rows[i-1].Resource {
			fmt.Fprintln(out, row.Resource)
		}
		fmt.Fprintf(out, "  %9d objects  %12d bytes  %s\n", row.Objects, row.Bytes, row.Encoding)
		if strings.HasPrefix(row.Encoding, migratestore.EncodingEncrypted) {
			encrypted += row.Objects
		}
	}
	printNamed(out, "values that cannot be read", len(census.Unknown), func(i int) string {
		return fmt.Sprintf("%q", census.Unknown[i])
	})
	if verified {
		printNamed(out, "values that do not decode", len(census.Undecodable), func(i int) string {
			return fmt.Sprintf("%q: %s", census.Undecodable[i].Key, census.Undecodable[i].Reason)
		})
		verdict := "all others decode"
		if encrypted > 0 {
			verdict += fmt.Sprintf(", but for %d encrypted values, which were not tried", encrypted)
		}
		fmt.Fprintln(out, "\n"+verdict)
	}
	_, err := fmt.Fprintf(out, "\nrevision %d\n", census.Revision)
	return err
}

// mixedFirst has the resources first that are stored in more than one encoding.
func mixedFirst(rows []migratestore.Row) []migratestore.Row {
	encodings := map[string]int{}
	for _, row := range rows {
		encodings[row.Resource]++
	}
	sorted := slices.Clone(rows)
	slices.SortStableFunc(sorted, func(a, b migratestore.Row) int {
		return min(encodings[b.Resource], 2) - min(encodings[a.Resource], 2)
	})
	return sorted
}

// printNamed prints the number of something, and the names of the first.
func printNamed(out io.Writer, what string, n int, name func(i int) string) {
	if n == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s: %d\n", what, n)
	for i := range min(n, namedInTable) {
		fmt.Fprintf(out, "  %s\n", name(i))
	}
	if n > namedInTable {
		fmt.Fprintf(out, "  and %d more, named by -o json\n", n-namedInTable)
	}
}
