package process

import (
	"testing"
	"time"
)

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

func TestMemory(t *testing.T) {
	got, err := memoryOf([]byte("Name:\tconcord\nVmPeak:\t  999 kB\nVmHWM:\t   2048 kB\nThreads:\t9\n"), "VmHWM:")
	if err != nil || got != 2<<20 {
		t.Errorf("%d, %v; want 2 MiB", got, err)
	}
	for _, bad := range []string{"", "VmHWM:\tmuch\n"} {
		if got, err := memoryOf([]byte(bad), "VmHWM:"); err == nil {
			t.Errorf("%q was read as %d", bad, got)
		}
	}
}
