//go:build unix

package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// readerGone reports whether nobody reads what is written to out any more, for example because out is a pipe to head,
// which has exited. Otherwise only a write would show that, and a watch without changes writes nothing.
func readerGone(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(file.Fd()), Events: unix.POLLOUT}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}
