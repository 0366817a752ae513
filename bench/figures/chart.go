package figures

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Bar is one line of a chart.
type Bar struct {
	Name  string
	Value float64
}

const (
	barHeight, barGap     = 18, 8
	labelWidth, plotWidth = 440, 420
	valueWidth, margin    = 130, 16
	titleHeight           = 34
)

// Chart draws values as bars on a logarithmic scale, as an SVG document. A value that is
// not positive has no bar.
func Chart(title, unit string, bars []Bar) string {
	least, most := math.Inf(1), 0.0
	for _, b := range bars {
		if b.Value > 0 {
			least, most = min(least, b.Value), max(most, b.Value)
		}
	}
	// The scale begins below the shortest bar, so that this bar can be seen.
	from := math.Floor(math.Log10(min(least, most))) - 0.3
	span := math.Log10(most) - from
	width := 2*margin + labelWidth + plotWidth + valueWidth
	height := 2*margin + titleHeight + len(bars)*(barHeight+barGap)
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13">`+"\n", width, height)
	fmt.Fprintf(&s, `<rect width="100%%" height="100%%" fill="white"/><text x="%d" y="%d" font-size="15" font-weight="bold">%s</text>`+"\n", margin, margin+14, html.EscapeString(title))
	for i, b := range bars {
		y := margin + titleHeight + i*(barHeight+barGap)
		length := 0.0
		if b.Value > 0 && span > 0 {
			length = plotWidth * (math.Log10(b.Value) - from) / span
		}
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end">%s</text>`, margin+labelWidth-8, y+14, html.EscapeString(b.Name))
		fmt.Fprintf(&s, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="#4878a8"/>`, margin+labelWidth, y, length, barHeight)
		fmt.Fprintf(&s, `<text x="%.1f" y="%d">%s</text>`+"\n", float64(margin+labelWidth)+length+6, y+14, html.EscapeString(quantity(b.Value, unit)))
	}
	s.WriteString("</svg>\n")
	return s.String()
}
