package process

import "syscall"

// ownGroup keeps a terminal's signals from a child, and has it killed if its parent dies.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
