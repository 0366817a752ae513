package fence

import "context"

type rewritingKey struct{}

// Rewriting marks what is done with ctx as a rewrite of objects that are to be stored as they
// are, in the current encoding. The updates of others begin with the cached object, which
// is usually the newest; but it does not tell how it is stored, so that an update
// that changes nothing is found to be one only after it was made, and then made again on
// what etcd holds. Updates under ctx begin with that.
//
// Nothing that a client sends sets the mark.
func Rewriting(ctx context.Context) context.Context {
	return context.WithValue(ctx, rewritingKey{}, true)
}

func rewriting(ctx context.Context) bool { return ctx.Value(rewritingKey{}) != nil }
