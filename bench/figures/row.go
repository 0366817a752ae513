package figures

import (
	"fmt"
	"math"

	"github.com/dustin/go-humanize"
)

// Row is one published figure.
type Row struct {
	Figure string
	// Unit of Value and of Beside.Value: "ms", "s", "objects/s", "MiB", or "" for a count.
	Unit  string
	Value float64
	// Beside is the figure that Value is compared with, for example that of stock
	// kube-apiserver. Both were measured in turns.
	Beside *Beside
	Target *Target
	// Verdict is PASS or miss where there is a target.
	Verdict Verdict
	Note    string
}

// Beside is the other side of a comparison, with which Row.Value is compared.
type Beside struct {
	What  string
	Value float64
	// Ratio is Row.Value divided by Value. With 95 % confidence it is within Low and High,
	// where these are given.
	Ratio float64
	Low   float64
	High  float64
}

// Verdict says whether a figure meets its target.
type Verdict string

// The verdicts. Figures without a target have none.
const (
	Pass Verdict = "PASS"
	Miss Verdict = "miss"
)

// Target bounds a figure's value or ratio.
type Target struct {
	// Ratio says whether the ratio is bounded, and not the value.
	Ratio bool
	// AtLeast says whether the bound is the lower one, and not the upper one.
	AtLeast bool
	Bound   float64
}

// RatioAtMost is the target of a ratio that must not be larger.
func RatioAtMost(bound float64) *Target { return &Target{Ratio: true, Bound: bound} }

// RatioAtLeast is the target of a ratio that must not be smaller.
func RatioAtLeast(bound float64) *Target { return &Target{Ratio: true, AtLeast: true, Bound: bound} }

// AtMost is the target of a value that must not be larger.
func AtMost(bound float64) *Target { return &Target{Bound: bound} }

// AtLeast is the target of a value that must not be smaller.
func AtLeast(bound float64) *Target { return &Target{AtLeast: true, Bound: bound} }

// Compare adds the other side of the comparison; its value has the unit of the row.
func (r Row) Compare(what string, value float64) Row {
	r.Beside = &Beside{What: what, Value: value, Ratio: finite(r.Value / value)}
	return r
}

// Within adds the bounds of the ratio, if they are known. It follows Compare.
func (r Row) Within(low, high float64, known bool) Row {
	if r.Beside != nil && known {
		beside := *r.Beside
		beside.Low, beside.High = finite(low), finite(high)
		r.Beside = &beside
	}
	return r
}

// finite makes a division by zero 0: infinity would meet every target of at least so much, and JSON has none.
func finite(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	return x
}

// Judged returns the row with a target and its verdict.
func (r Row) Judged(t *Target) Row {
	figure := r.Value
	if t.Ratio {
		figure = 0
		if r.Beside != nil {
			figure = r.Beside.Ratio
		}
	}
	r.Target, r.Verdict = t, Miss
	if t.AtLeast && figure >= t.Bound || !t.AtLeast && figure <= t.Bound && (!t.Ratio || figure > 0) {
		r.Verdict = Pass
	}
	return r
}

func (t *Target) text(unit string) string {
	sign := "≤"
	if t.AtLeast {
		sign = "≥"
	}
	if t.Ratio {
		return fmt.Sprintf("ratio %s %s", sign, number(t.Bound))
	}
	return fmt.Sprintf("%s %s", sign, quantity(t.Bound, unit))
}

// quantity writes a figure with its unit.
func quantity(x float64, unit string) string {
	if unit == "" {
		return number(x)
	}
	return number(x) + " " + unit
}

// number writes a figure with three significant digits, and with separators between thousands.
func number(x float64) string {
	switch size := math.Abs(x); {
	case math.IsNaN(x):
		return "-"
	case size >= 100 || x == math.Trunc(x):
		return humanize.Comma(int64(math.RoundToEven(x)))
	case size >= 10:
		return fmt.Sprintf("%.1f", x)
	case size >= 1:
		return fmt.Sprintf("%.2f", x)
	default:
		return fmt.Sprintf("%.3f", x)
	}
}
