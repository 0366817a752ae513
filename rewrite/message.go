package rewrite

import (
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// message is an etcdserverpb.RangeStreamResponse as it was sent.
type message struct{ buffer mem.Buffer }

// wholeCodec is gRPC's codec, but for a message, which it leaves as it is.
type wholeCodec struct{ encoding.CodecV2 }

var whole = wholeCodec{encoding.GetCodecV2(grpcproto.Name)}

// Unmarshal implements encoding.CodecV2.
func (c wholeCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	m.buffer = data.MaterializeToBuffer(messages)
	return nil
}

// The numbers of the fields that are read of etcd's messages.
const (
	streamedRange = 1 // of RangeStreamResponse

	rangeHeader = 1 // of RangeResponse
	rangeKvs    = 2

	kvKey         = 1 // of KeyValue
	kvModRevision = 3
	kvValue       = 5
	kvLease       = 6
)

// page reads a piece of a stream. Its values are parts of the message, whose buffer is used
// again when the page is released.
func (m *message) page() (Page, error) {
	page := Page{More: true, release: m.buffer.Free}
	err := eachField(m.buffer.ReadOnlyData(), func(number protowire.Number, content []byte, _ uint64) error {
		if number != streamedRange {
			return nil
		}
		return page.read(content)
	})
	if err != nil {
		return Page{}, fmt.Errorf("a piece of a stream: %w", err)
	}
	return page, nil
}

// read adds what a RangeResponse has. Only the last one of a stream has a header.
func (p *Page) read(response []byte) error {
	n := 0
	err := eachField(response, func(number protowire.Number, _ []byte, _ uint64) error {
		if number == rangeKvs {
			n++
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.Entries = slices.Grow(p.Entries, n)
	return eachField(response, func(number protowire.Number, content []byte, _ uint64) error {
		switch number {
		case rangeHeader:
			p.More = false
		case rangeKvs:
			p.Entries = append(p.Entries, Entry{})
			return p.Entries[len(p.Entries)-1].read(content)
		}
		return nil
	})
}

func (e *Entry) read(kv []byte) error {
	return eachField(kv, func(number protowire.Number, content []byte, n uint64) error {
		switch number {
		case kvKey:
			e.Key = string(content)
		case kvModRevision:
			e.ModRevision = int64(n)
		case kvValue:
			e.Value = content
		case kvLease:
			e.Lease = int64(n)
		}
		return nil
	})
}

// eachField goes through a protobuf message: content is what a field has that is no number.
func eachField(message []byte, visit func(number protowire.Number, content []byte, n uint64) error) error {
	for len(message) > 0 {
		number, kind, length := protowire.ConsumeTag(message)
		if length < 0 {
			return protowire.ParseError(length)
		}
		message = message[length:]
		var content []byte
		var n uint64
		switch kind {
		case protowire.BytesType:
			content, length = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			n, length = protowire.ConsumeVarint(message)
		default:
			length = protowire.ConsumeFieldValue(number, kind, message)
		}
		if length < 0 {
			return protowire.ParseError(length)
		}
		if err := visit(number, content, n); err != nil {
			return err
		}
		message = message[length:]
	}
	return nil
}

// messages has the buffers of messages, which are about as long as each other.
var messages mem.BufferPool = &bufferPool{}

type bufferPool struct{ pool sync.Pool }

// Get implements mem.BufferPool.
func (p *bufferPool) Get(length int) *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok && cap(*b) >= length {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length)
	return &b
}

// Put implements mem.BufferPool.
func (p *bufferPool) Put(b *[]byte) { p.pool.Put(b) }
