package rewrite

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// pager reads a prefix page by page, all pages at the revision of the first.
type pager struct {
	reader    Reader
	next, end string
	revision  int64
	limit     int
	maxKeys   int
	maxBytes  int
	done      bool
}

// firstLimit keeps the first pages small, before anything is known of the values' sizes.
const firstLimit = 64

func newPager(reader Reader, prefix string, maxKeys, maxBytes int) *pager {
	return &pager{
		reader:   reader,
		next:     prefix,
		end:      clientv3.GetPrefixRangeEnd(prefix),
		limit:    min(firstLimit, maxKeys),
		maxKeys:  maxKeys,
		maxBytes: maxBytes,
	}
}

// goOnBehind begins behind a key; at the beginning if it is empty.
func (p *pager) goOnBehind(key string) {
	if key != "" {
		p.next = key + "\x00"
	}
}

// page returns the next page. An error leaves the pager where it was.
func (p *pager) page(ctx context.Context) (Page, error) {
	page, err := p.read(ctx)
	if err != nil {
		return Page{}, err
	}
	p.revision = page.Revision
	if n := len(page.Entries); n > 0 && page.More {
		p.next = page.Entries[n-1].Key + "\x00"
		p.limit = nextLimit(p.limit, size(page.Entries)/n, p.maxKeys, p.maxBytes)
	} else {
		p.done = true
	}
	return page, nil
}

// read asks for fewer keys where the values of a page turn out to be larger than those
// seen so far.
func (p *pager) read(ctx context.Context) (Page, error) {
	for {
		page, err := p.reader.Range(ctx, p.next, p.end, int64(p.limit), p.revision)
		if !errors.Is(err, ErrTooLarge) || p.limit == 1 {
			return page, err
		}
		p.limit = max(1, p.limit/4)
	}
}

// pageAcrossCompaction is page, going on at the newest revision when the pager's own
// has been compacted.
func (p *pager) pageAcrossCompaction(ctx context.Context) (Page, error) {
	for {
		page, err := p.page(ctx)
		if !errors.Is(err, ErrCompacted) || p.revision == 0 {
			return page, err
		}
		p.revision = 0
	}
}

// nextLimit bounds the number of keys in the next page so that values of the average
// size seen fit into maxBytes. It grows by doubling only, so that a first few small
// values do not lead to a page of many large ones.
func nextLimit(limit, average, maxKeys, maxBytes int) int {
	return max(1, min(2*limit, maxKeys, maxBytes/max(1, average)))
}

func size(entries []Entry) int {
	n := 0
	for _, e := range entries {
		n += len(e.Value)
	}
	return n
}
