package figures

import (
	"math"
	"testing"
)

func TestQuantile(t *testing.T) {
	samples := []float64{5, 1, 4, 2, 3}
	for _, test := range []struct{ q, want float64 }{{0, 1}, {0.2, 1}, {0.21, 2}, {0.5, 3}, {0.99, 5}, {1, 5}} {
		if got := Quantile(samples, test.q); got != test.want {
			t.Errorf("Quantile(%v) = %v, want %v", test.q, got, test.want)
		}
	}
	if samples[0] != 5 {
		t.Error("Quantile sorted its argument")
	}
	if got := Quantile(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("the quantile of nothing is %v", got)
	}
}

func TestRatioInterval(t *testing.T) {
	var slow, fast []float64
	for i := range 200 {
		base := 10 + float64(i%10)
		slow, fast = append(slow, base*1.5), append(fast, base)
	}
	low, high, ok := RatioInterval(slow, fast, Median)
	if !ok || low > 1.5 || high < 1.5 || low < 1.2 || high > 1.9 {
		t.Errorf("the ratio 1.5 was found between %v and %v (%v)", low, high, ok)
	}
	if _, _, ok := RatioInterval(slow[:19], fast[:19], Median); ok {
		t.Error("19 pairs were held to be enough")
	}
}

func TestVerdicts(t *testing.T) {
	row := Row{Value: 3, Unit: "s"}
	for _, test := range []struct {
		row    Row
		target *Target
		want   Verdict
	}{
		{row.Compare("other", 2), RatioAtMost(1.5), Pass},
		{row.Compare("other", 2), RatioAtMost(1.4), Miss},
		{row.Compare("other", 0.1), RatioAtLeast(20), Pass},
		{row.Compare("other", 1), RatioAtLeast(20), Miss},
		{row, AtMost(3), Pass},
		{row, AtMost(2), Miss},
		{Row{}, AtMost(0), Pass},
		// Without another side there is no ratio, hence nothing that could be within bounds.
		{row, RatioAtMost(1), Miss},
		{row.Compare("other", 0), RatioAtMost(1), Miss},
		{row.Compare("other", 0), RatioAtLeast(1), Miss},
	} {
		if got := test.row.Judged(test.target).Verdict; got != test.want {
			t.Errorf("%+v against %s: %s, want %s", test.row, test.target.text("s"), got, test.want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	for _, test := range []struct {
		row  Row
		want string
	}{
		{
			Row{Figure: "write, p50", Unit: "ms", Value: 2.345}.Compare("without", 2.3).Within(0.98, 1.0612, true).Judged(RatioAtMost(1.05)),
			"| write, p50 | 2.35 ms | 2.30 ms without | 1.02 (0.980 to 1.06) | ratio ≤ 1.05 | PASS |\n",
		},
		{Row{Figure: "a|b", Value: 17, Note: "n"}, "| a\\|b (n) | 17 |  |  |  |  |\n"},
		{
			Row{Figure: "rate", Unit: "objects/s", Value: 12345.6}.Judged(AtMost(1000)),
			"| rate | 12,346 objects/s |  |  | ≤ 1,000 objects/s | miss |\n",
		},
	} {
		if got := test.row.Markdown(); got != test.want {
			t.Errorf("got  %swant %s", got, test.want)
		}
	}
}

func TestMedian(t *testing.T) {
	for want, samples := range map[float64][]float64{3: {3}, 4: {3, 5}, 5: {9, 5, 1}, 6: {9, 1, 7, 5}} {
		if got := Median(samples); got != want {
			t.Errorf("of %v: %v, want %v", samples, got, want)
		}
	}
	if got := Median(nil); !math.IsNaN(got) {
		t.Errorf("of nothing: %v", got)
	}
}
