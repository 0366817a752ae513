package stage

import (
	"testing"
	"time"
)

func TestConnectedUnix(t *testing.T) {
	const table = `Num       RefCount Protocol Flags    Type St Inode Path
ffff8880: 00000002 00000000 00010000 0001 01 1001 /tmp/etcd.sock
ffff8881: 00000003 00000000 00000000 0001 03 1002 /tmp/etcd.sock
ffff8882: 00000003 00000000 00000000 0001 03 1003
ffff8883: 00000002 00000000 00000000 0002 01 1004 /run/log
ffff8884: 00000003 00000000 00000000 0002 03 1005
`
	got := connectedUnix([]byte(table))
	for inode, want := range map[string]bool{"1001": false, "1002": true, "1003": true, "1004": false, "1005": false} {
		if got[inode] != want {
			t.Errorf("socket %s is held to be connected: %v, want %v", inode, got[inode], want)
		}
	}
}

func TestCPU(t *testing.T) {
	const stat = "4242 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 9 0 1 1\n"
	got, err := cpuOf([]byte(stat))
	if err != nil || got != 3*time.Second {
		t.Errorf("%v, %v; want 3s", got, err)
	}
	for _, bad := range []string{"", "1 (x) S 1", "1 (x) S 1 2 3 4 5 6 7 8 9 10 x y z"} {
		if got, err := cpuOf([]byte(bad)); err == nil {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
}

func TestPeak(t *testing.T) {
	got, err := peakOf([]byte("Name:\tconcord\nVmPeak:\t  999 kB\nVmHWM:\t   2048 kB\nThreads:\t9\n"))
	if err != nil || got != 2<<20 {
		t.Errorf("%d, %v; want 2 MiB", got, err)
	}
	for _, bad := range []string{"", "VmHWM:\tmuch\n"} {
		if got, err := peakOf([]byte(bad)); err == nil {
			t.Errorf("%q was read as %d", bad, got)
		}
	}
}
