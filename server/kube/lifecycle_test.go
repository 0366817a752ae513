package kube_test

import (
	"net"
	"testing"
)

// TestStoppedAtStart: a server that is stopped while its etcd does not answer ends without an error.
func TestStoppedAtStart(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	c := newFiles(t)
	c.etcd = []string{"--etcd-servers=http://" + silent.Addr().String()}
	c.prepare()
	s := c.start(ours, "one")
	asked, err := silent.Accept()
	must(t, err)
	defer func() { _ = asked.Close() }()
	s.stop()
}
