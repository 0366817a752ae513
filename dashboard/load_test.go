package dashboard

import (
	"strings"
	"testing"
	"time"
)

const metricsText = `# HELP apiserver_request_duration_seconds Response latency.
# TYPE apiserver_request_duration_seconds histogram
apiserver_request_duration_seconds_bucket{resource="pods",verb="GET",le="0.1"} FAST
apiserver_request_duration_seconds_bucket{resource="pods",verb="GET",le="1"} ALL
apiserver_request_duration_seconds_bucket{resource="pods",verb="GET",le="+Inf"} ALL
apiserver_request_duration_seconds_sum{resource="pods",verb="GET"} 1
apiserver_request_duration_seconds_count{resource="pods",verb="GET"} ALL
apiserver_request_duration_seconds_bucket{resource="pods",verb="WATCH",le="0.1"} 0
apiserver_request_duration_seconds_bucket{resource="pods",verb="WATCH",le="1"} 0
apiserver_request_duration_seconds_bucket{resource="pods",verb="WATCH",le="+Inf"} 100000
apiserver_request_duration_seconds_sum{resource="pods",verb="WATCH"} 1
apiserver_request_duration_seconds_count{resource="pods",verb="WATCH"} 100000
# TYPE process_start_time_seconds gauge
process_start_time_seconds STARTED
# TYPE other counter
other 1
`

func metrics(t *testing.T, at time.Time, started, fast, all string) load {
	t.Helper()
	l, err := loadOf(strings.NewReader(strings.NewReplacer("STARTED", started, "FAST", fast, "ALL", all).Replace(metricsText)))
	if err != nil {
		t.Fatal(err)
	}
	l.at = at
	return l
}

// TestLoad: the 99th percentile is of the requests between two looks at one process.
func TestLoad(t *testing.T) {
	now := time.Unix(1e9, 0)
	first := metrics(t, now, "5", "1000", "1000")
	if c := first.since(load{}); c != nil {
		t.Errorf("of one look there is %+v", c)
	}
	fast := metrics(t, now.Add(10*time.Second), "5", "1999", "2000").since(first)
	if fast == nil || fast.P99Seconds != 0.1 || fast.Requests != 1000 || fast.PerSecond != 100 {
		t.Errorf("with one slow request in a thousand it is %+v", fast)
	}
	slow := metrics(t, now.Add(10*time.Second), "5", "1980", "2000").since(first)
	if slow == nil || slow.P99Seconds != 1 {
		t.Errorf("with twenty it is %+v", slow)
	}
	if c := metrics(t, now, "6", "1999", "2000").since(first); c != nil {
		t.Errorf("of two processes there is %+v", c)
	}
	if c := metrics(t, now, "5", "1010", "1010").since(first); c != nil {
		t.Errorf("of ten requests there is %+v", c)
	}
}
