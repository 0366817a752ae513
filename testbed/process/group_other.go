//go:build !linux

package process

import "syscall"

// ownGroup keeps a terminal's signals from a child.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
