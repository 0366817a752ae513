// Package grpclimit keeps connections to etcd from coming to a standstill. It is imported for
// that alone.
//
// gRPC reads nothing more of a connection while 100 of its control items wait to be sent, and
// since 1.83 the beginning and the end of each call count. With more than 100 calls under way
// both ends of a connection can be in that state, each waiting for the other one to read:
// values go to etcd, watch events or a page come from it, and the buffers are full both ways.
// A connection that had a rewrite's 512 puts and its stream of pages stood still until
// keepalive gave it up. It is enough that one end reads on.
package grpclimit

import "os"

const variable = "GRPC_GO_EXPERIMENTAL_CONTROL_BUFFER_THROTTLE_LIMIT"

// most is the highest limit that gRPC takes.
const most = "10000"

// gRPC reads the variable when it is initialised. Go initialises packages in the order of
// their paths, imported ones first: this one, which imports nothing of gRPC, comes before.
func init() {
	if os.Getenv(variable) == "" {
		// It cannot fail: the name and the value are valid.
		_ = os.Setenv(variable, most)
	}
}
