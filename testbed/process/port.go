package process

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports of servers are below those that systems use for outgoing connections, any of which might take a port while its
// server is restarted.
const firstPort, lastPort = 20000, 32000

var given struct {
	sync.Mutex
	ports map[int]bool
}

// FreePort returns a TCP port on 127.0.0.1 on which nobody listens, a different one each time. It stays free for the
// server unless another program takes it first.
func FreePort() (int, error) {
	given.Lock()
	defer given.Unlock()
	last := errors.New("all were given away")
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if given.ports[port] {
			continue
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			last = err
			continue
		}
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("port %d: %w", port, err)
		}
		if given.ports == nil {
			given.ports = map[int]bool{}
		}
		given.ports[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 between %d and %d: %w", firstPort, lastPort, last)
}
