package process

import (
	"fmt"
	"net"
	"testing"
)

// TestFreePort: no port comes twice, and a server can listen on each of them.
func TestFreePort(t *testing.T) {
	seen := map[int]bool{}
	for range 100 {
		port, err := FreePort()
		must(t, err)
		if seen[port] || port < firstPort || port >= lastPort {
			t.Fatalf("port %d after %v", port, seen)
		}
		seen[port] = true
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		must(t, err)
		defer func() { _ = listener.Close() }()
	}
}
