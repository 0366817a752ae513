package main

import (
	"testing"
	"time"
)

// TestLines: lines are found by their message and fields, whichever logger wrote them; the time span
// that a line reports ends with the line.
func TestLines(t *testing.T) {
	const log = `I1125 11:02:03.500000    42 migrator.go:77] "Written" logger="migrate" resource="as.example.com" encoding="example.com/v2" objects=3 took="1.5s"
I1125 11:02:04.000000    42 migrator.go:85] "Proof" logger="migrate" resource="as.example.com" encoding="example.com/v2" holds=false verdict="x" took="1s"
not from klog: "Proof" resource="as.example.com" encoding="example.com/v2" holds=true took="1s"
I1125 11:02:05.000000    42 migrator.go:85] "Proof" logger="migrate" resource="bs.example.com" encoding="example.com/v2" holds=true verdict="x" took="1s"
`
	const fields = ` resource="as.example.com" encoding="example.com/v2" `
	got, ok := last(lines(log, fields, "Written"))
	if want := time.Date(time.Now().Year(), 11, 25, 11, 2, 2, 0, time.Local); !ok || got.took() != 1500*time.Millisecond || !got.began.Equal(want) {
		t.Errorf("%v, %t; want one from %v", got, ok, want)
	}
	if got, ok := last(lines(log, fields+"holds=true ", "Proof")); ok {
		t.Errorf("a proof of another resource, or that does not hold, is %v", got)
	}
	if all := lines(log, "", "Written", "Proof"); len(all) != 3 {
		t.Errorf("%d lines, want 3", len(all))
	}
}
