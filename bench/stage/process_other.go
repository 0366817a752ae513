//go:build !linux

package stage

import "syscall"

// ownGroup keeps a terminal's signals from a child.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
