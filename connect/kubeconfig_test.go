package connect

import (
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestWithTimeout: what --request-timeout says goes before the bound of commands.
func TestWithTimeout(t *testing.T) {
	for said, want := range map[time.Duration]time.Duration{0: answerTimeout, time.Second: time.Second, time.Minute: time.Minute} {
		config := &rest.Config{Timeout: said}
		if got := WithTimeout(config).Timeout; got != want || config.Timeout != said {
			t.Errorf("of %v it is %v, not %v", said, got, want)
		}
	}
}
