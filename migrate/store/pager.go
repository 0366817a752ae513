package store

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// pager reads a prefix page by page, all pages at the revision of the first.
//
// etcd visits every key of a requested range to count them, however few of them it returns. If every page asked for
// all that is left, a million keys would be visited a thousand million times. So the pager asks for ranges that are
// not much longer than a page: keys that share the common prefix of the last page's keys. If pages would be long, and
// etcd supports it, it requests the rest as one stream.
type pager struct {
	reader Reader
	next   string
	// common is the beginning that all keys of the range asked for next have; the prefix,
	// or longer.
	prefix, common string
	revision       int64
	limit          int
	maxKeys        int
	maxBytes       int
	done           bool
	// streamer is nil where there are no streams, and streaming while none is read.
	streamer  streamer
	streaming *stream
}

// firstLimit keeps the first pages small, before anything is known of the values' sizes.
const firstLimit = 64

func newPager(reader Reader, prefix string, maxKeys, maxBytes int) *pager {
	p := &pager{
		reader:   reader,
		next:     prefix,
		prefix:   prefix,
		common:   prefix,
		limit:    min(firstLimit, maxKeys),
		maxKeys:  maxKeys,
		maxBytes: maxBytes,
	}
	p.streamer, _ = reader.(streamer)
	return p
}

// close ends the stream that the pager has under way. It may go on where it was.
func (p *pager) close() {
	if p.streaming != nil {
		p.streaming.close()
		p.streaming = nil
	}
}

// goOnBehind begins behind a key; at the beginning if it is empty.
func (p *pager) goOnBehind(key string) {
	if key != "" {
		p.next = key + "\x00"
	}
}

// atMost bounds the keys of the next pages.
func (p *pager) atMost(keys int) {
	p.maxKeys, p.limit = keys, min(p.limit, keys)
}

// longRange is how many pages a range may have before it is narrowed.
const longRange = 16

// longPage is from how many keys on pages are read as a stream instead. Where values are
// large, or the pace is slow, pages are shorter.
const longPage = 1000

// page returns the next page, which may be empty. An error leaves the pager where it was.
func (p *pager) page(ctx context.Context) (Page, error) {
	if p.limit < longPage {
		p.close()
	}
	page, streamed, err := p.nextPage(ctx)
	if err != nil {
		return Page{}, err
	}
	p.revision = page.Revision
	n := len(page.Entries)
	if n > 0 && !streamed { // a stream looks to the sizes itself
		p.limit = nextLimit(p.limit, size(page.Entries)/n, p.maxKeys, p.maxBytes)
	}
	switch {
	case page.More && n > 0:
		p.next = page.Entries[n-1].Key + "\x00"
		// A stream may end early; the range that is read then should be short.
		if streamed || page.Count > longRange*int64(max(p.limit, firstLimit)) {
			p.common = commonPrefix(page.Entries[0].Key, page.Entries[n-1].Key)
		}
	case !streamed && p.common != p.prefix:
		p.widen()
	default:
		p.done = true
	}
	return page, nil
}

// nextPage reads on in a stream of all that is left, or a page where that cannot be.
func (p *pager) nextPage(ctx context.Context) (page Page, streamed bool, err error) {
	if p.limit >= longPage && p.revision != 0 && p.streamer != nil {
		page, err = p.piece(ctx)
		switch {
		case err == nil:
			return page, true, nil
		case errors.Is(err, errNoStreams):
			p.streamer = nil
		case errors.Is(err, ErrTooLarge):
			p.limit = longPage / 4
		default:
			return Page{}, false, err
		}
	}
	page, err = p.read(ctx)
	return page, false, err
}

// piece returns the next piece of the stream. None goes on after an error.
func (p *pager) piece(ctx context.Context) (page Page, err error) {
	if p.streaming == nil {
		p.streaming, err = p.streamer.stream(ctx, p.next, clientv3.GetPrefixRangeEnd(p.prefix), p.revision)
	}
	if err == nil {
		page, err = p.streaming.next(ctx)
	}
	if err != nil {
		p.close()
	}
	return page, err
}

// widen continues behind a range that was read to its end, with a longer one.
func (p *pager) widen() {
	p.next = clientv3.GetPrefixRangeEnd(p.common)
	for len(p.common) > len(p.prefix) {
		p.common = p.common[:len(p.common)-1]
		if clientv3.GetPrefixRangeEnd(p.common) > p.next {
			return
		}
	}
}

func commonPrefix(a, b string) string {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return a[:n]
}

// read asks for fewer keys where the values of a page turn out to be larger than those
// seen so far.
func (p *pager) read(ctx context.Context) (Page, error) {
	for {
		page, err := p.reader.Range(ctx, p.next, clientv3.GetPrefixRangeEnd(p.common), int64(p.limit), p.revision)
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
