package store

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errNoStreams means that a range has to be read page by page.
var errNoStreams = errors.New("this etcd has no streams, which are new in 3.7")

var (
	errBrokenOff = fmt.Errorf("%w: its answer breaks off", ErrUnavailable)
	errNoRange   = errors.New("a piece of a stream that has no range")
)

// streamer is a Reader that can be sent a long range in pieces, without asking for each.
type streamer interface {
	Reader
	// stream begins to read the keys in [start, end) as they were at revision, which is not 0.
	// It fails with errNoStreams, or the first piece does. ctx is that of this call alone.
	stream(ctx context.Context, start, end string, revision int64) (*stream, error)
}

// stream is a range that comes in pieces, from ten keys to about as many bytes as a transaction
// may have. etcd sends on until as much is under way as a stream may have (package fence allows
// 4 MiB), and never counts the keys behind a piece.
type stream struct {
	etcd     *Etcd
	start    string
	revision int64
	// receive waits for a piece. It fails when cancel is called.
	receive func() (Page, error)
	cancel  context.CancelFunc
}

// stream implements streamer.
func (e *Etcd) stream(ctx context.Context, start, end string, revision int64) (*stream, error) {
	if e.streamless.Load() {
		return nil, errNoStreams
	}
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)()
	receive, err := e.open(streaming, start, end, revision)
	if err != nil {
		cancel()
		return nil, e.streamError(ctx, start, revision, err)
	}
	return &stream{etcd: e, start: start, revision: revision, receive: receive, cancel: cancel}, nil
}

// streamError translates a stream's error. A caller whose context ended gets only the context's error.
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
	stop := context.AfterFunc(ctx, s.cancel)
	page, err := s.receive()
	switch {
	case !stop() && err == nil:
		err = ctx.Err()
	case err == nil && page.More && len(page.Entries) == 0:
		err = errBrokenOff // it would be taken for the end
	}
	if err != nil {
		return Page{}, s.etcd.streamError(ctx, s.start, s.revision, err)
	}
	page.Revision = s.revision
	return page, nil
}

// close gives up the pieces that have not come yet.
func (s *stream) close() {
	s.cancel()
	for { // the sender waits until it is taken
		if _, err := s.receive(); err != nil {
			return
		}
	}
}

// open begins a stream.
func (e *Etcd) open(ctx context.Context, start, end string, revision int64) (receive func() (Page, error), err error) {
	pieces, err := e.kv.GetStream(ctx, start, clientv3.WithRange(end), clientv3.WithRev(revision))
	return func() (Page, error) {
		piece, ok := <-pieces
		switch err := piece.Err(); {
		case !ok:
			return Page{}, errBrokenOff
		case err != nil:
			return Page{}, err
		case piece.RangeResponse == nil:
			return Page{}, errNoRange
		}
		page := pageOf(piece.RangeResponse)
		page.More = piece.Header == nil // which only the last piece has
		return page, nil
	}, err
}
