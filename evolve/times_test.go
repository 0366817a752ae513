package evolve

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func widgets(i int) schema.GroupResource {
	return schema.GroupResource{Group: "example.com", Resource: fmt.Sprint("widgets", i)}
}

// TestHeartbeatsAreSpread: a thousand resources that are all written at once are not
// refreshed at once, and each once in a period, well within the ten minutes of KEP-2343.
func TestHeartbeatsAreSpread(t *testing.T) {
	const resources, periods = 1000, 12
	last := make([]time.Time, resources)
	for i := range last {
		last[i] = now
	}
	beats := make([]int, resources)
	most := 0
	end := periods * HeartbeatPeriod
	for at := time.Second; at <= end; at += time.Second {
		clock, together := now.Add(at+300*time.Millisecond), 0
		for i := range last {
			if !Due(widgets(i), last[i], clock) {
				continue
			}
			if beats[i] > 0 && clock.Sub(last[i]) > HeartbeatPeriod+2*time.Second {
				t.Fatalf("%s is %s old", widgets(i), clock.Sub(last[i]))
			}
			last[i] = clock.Truncate(time.Second) // as it is read back
			beats[i]++
			together++
		}
		most = max(most, together)
	}
	for i, n := range beats {
		if n != periods {
			t.Errorf("%s: %d heartbeats in %d periods", widgets(i), n, periods)
		}
	}
	if fair := resources * int(time.Second) / int(HeartbeatPeriod); most > 6*fair {
		t.Errorf("up to %d heartbeats in a second, %d would be fair", most, fair)
	}
	if 2*HeartbeatPeriod > DiscoveryPeriod {
		t.Errorf("a heartbeat every %s: a late one looks like none for %s", HeartbeatPeriod, DiscoveryPeriod)
	}
}

func TestUntilBeat(t *testing.T) {
	for i := range 500 {
		at := now.Add(time.Duration(i) * 1234 * time.Millisecond)
		until := UntilBeat(widgets(i), at)
		if until <= 0 || until > HeartbeatPeriod {
			t.Fatalf("%s until the next heartbeat of %s", until, widgets(i))
		}
		if Due(widgets(i), at, at.Add(until-1)) || !Due(widgets(i), at, at.Add(until)) {
			t.Errorf("%s is not due after %s", widgets(i), until)
		}
	}
	for heartbeat, want := range map[time.Time]bool{{}: true, now.Add(time.Hour): true, now.Add(10 * time.Second): false} {
		if got := Due(widgets(0), heartbeat, now); got != want {
			t.Errorf("a heartbeat of %s at %s: due %t", heartbeat, now, got)
		}
	}
}
