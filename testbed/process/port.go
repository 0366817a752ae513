package process

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
)

// Ports of servers are below those that systems use for outgoing connections, any of which might take a port while its
// server is restarted.
const firstPort, lastPort = 20000, 32000

// given has the ports that were given away, and what keeps other processes from them.
var given struct {
	sync.Mutex
	ports map[int]net.Listener
}

// FreePort returns a TCP port on 127.0.0.1 on which nobody listens, a different one each time. It stays free for the
// server as long as this process runs, unless a program takes it first that does not ask here.
func FreePort() (int, error) {
	given.Lock()
	defer given.Unlock()
	last := errors.New("all were given away")
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if _, ours := given.ports[port]; ours {
			continue
		}
		kept, err := reserve(port)
		if err != nil {
			last = err
			continue
		}
		if given.ports == nil {
			given.ports = map[int]net.Listener{}
		}
		given.ports[port] = kept
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			last = err
			continue
		}
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("port %d: %w", port, err)
		}
		return port, nil
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 between %d and %d: %w", firstPort, lastPort, last)
}

// reserve has FreePort of other processes not give a port away as long as this one runs. Linux has names for sockets
// that are no files, and end with the process; elsewhere, nothing is reserved.
func reserve(port int) (net.Listener, error) {
	if runtime.GOOS != "linux" {
		return nil, nil
	}
	return net.Listen("unix", fmt.Sprintf("@concord-port-%d", port))
}
