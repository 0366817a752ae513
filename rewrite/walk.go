package rewrite

import "context"

// Walk visits the entries under a prefix in key order, a page at a time, until visit
// fails. It begins with a linearizable read and stays at that revision; where that is
// compacted meanwhile it goes on at the newest.
func Walk(ctx context.Context, reader Reader, prefix string, visit func(Entry) error) error {
	defaults := Options{}.withDefaults()
	pager := newPager(reader, prefix, defaults.PageKeys, defaults.PageBytes)
	for !pager.done {
		page, err := pager.pageAcrossCompaction(ctx)
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			if err := visit(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// CountEncodings counts the values of one resource, whose keys all have prefix, by the
// encodings that a Row can have. With an error it returns what it counted so far.
func CountEncodings(ctx context.Context, reader Reader, prefix string) (map[string]int64, error) {
	counts := map[string]int64{}
	err := Walk(ctx, reader, prefix, func(e Entry) error {
		if encoding, _, ok := Envelope(e.Value); ok {
			counts[string(encoding)]++
		} else {
			counts[unreadable(e.Value)]++
		}
		return nil
	})
	return counts, err
}
