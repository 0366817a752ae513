package main

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// onlyIdle makes the process run only while no other process wants the processor (SCHED_IDLE). A new thread
// inherits this from the thread that created it, so the loop ends only when all threads have it.
func onlyIdle() error {
	for all := false; !all; {
		all = true
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, task := range tasks {
			id, err := strconv.Atoi(task.Name())
			if err != nil {
				return err
			}
			attr, err := unix.SchedGetAttr(id, 0)
			if err == nil && attr.Policy != unix.SCHED_IDLE {
				all = false
				err = unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
			}
			if err != nil && !errors.Is(err, unix.ESRCH) { // ended meanwhile
				return err
			}
		}
	}
	return nil
}
