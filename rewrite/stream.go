package rewrite

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errNoStreams means that a range is to be read page by page.
var errNoStreams = errors.New("this etcd has no streams, which are new in 3.7")

var errBrokenOff = fmt.Errorf("%w: its answer breaks off", ErrUnavailable)

// streamer is a Reader that can be sent a long range in pieces, without asking for each.
type streamer interface {
	Reader
	// stream begins to read the keys in [start, end) as they were at revision, which is not 0.
	// It fails with errNoStreams, or the first piece does. ctx is that of this call alone.
	stream(ctx context.Context, start, end string, revision int64) (*stream, error)
}

// stream is a range that comes in pieces, from ten keys to about as many bytes as a transaction
// may have. etcd sends on until what the connection may have under way is full (package fence
// allows 4 MiB), and never counts the keys behind a piece.
type stream struct {
	etcd     *Etcd
	start    string
	revision int64
	pieces   clientv3.GetStreamChan
	cancel   context.CancelFunc
}

// stream implements streamer.
func (e *Etcd) stream(ctx context.Context, start, end string, revision int64) (*stream, error) {
	if e.streamless.Load() {
		return nil, errNoStreams
	}
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)()
	pieces, err := e.kv.GetStream(streaming, start, clientv3.WithRange(end), clientv3.WithRev(revision))
	if err != nil {
		cancel()
		return nil, e.streamError(ctx, start, revision, err)
	}
	return &stream{etcd: e, start: start, revision: revision, pieces: pieces, cancel: cancel}, nil
}

// streamError is what a stream's error means. Whoever gave up is told that and nothing else.
func (e *Etcd) streamError(ctx context.Context, start string, revision int64, err error) error {
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case status.Code(err) == codes.Unimplemented:
		e.streamless.Store(true)
		return errNoStreams
	}
	return readError(start, revision, err)
}

// next waits for a piece. No stream goes on after an error, or after a piece that has no more
// behind it.
func (s *stream) next(ctx context.Context) (Page, error) {
	var err error
	select {
	case piece, ok := <-s.pieces:
		if !ok {
			err = errBrokenOff
			break
		}
		if err = piece.Err(); err == nil {
			page := pageOf(piece.RangeResponse)
			// Only the last piece has a header.
			page.More, page.Revision = piece.Header == nil, s.revision
			return page, nil
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	return Page{}, s.etcd.streamError(ctx, s.start, s.revision, err)
}

// close gives up what has not come yet.
func (s *stream) close() {
	s.cancel()
	for range s.pieces { // who sends them waits until they are taken
		continue
	}
}
