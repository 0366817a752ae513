//go:build !linux

package main

import "syscall"

// onlyIdle gives the process the lowest priority.
func onlyIdle() error { return syscall.Setpriority(syscall.PRIO_PGRP, 0, 19) }
