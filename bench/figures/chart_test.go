package figures

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestChart(t *testing.T) {
	chart := Chart("a < b", "objects/s", []Bar{{"slow & small", 100}, {"fast", 10_000}, {"none", 0}})
	for decoder := xml.NewDecoder(strings.NewReader(chart)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, chart)
		}
	}
	for _, want := range []string{"a &lt; b", "slow &amp; small", "10,000 objects/s", `width="420.0"`, `width="0.0"`} {
		if !strings.Contains(chart, want) {
			t.Errorf("no %q in %s", want, chart)
		}
	}
	if empty := Chart("nothing", "s", nil); !strings.Contains(empty, "</svg>") || strings.Contains(empty, "NaN") {
		t.Errorf("got %s", empty)
	}
}
