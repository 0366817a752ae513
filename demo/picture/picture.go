// Command picture makes an SVG of the demo's output, which it reads from its standard input: the text as a terminal
// shows it, in the reader's light or dark colours. It leaves out most progress lines, and the table's rows of
// resources that do not move.
package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		_, err = io.WriteString(os.Stdout, svg(shortened(string(text))))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

// The progress lines that stay report a step, a server's state or, for the first time for a resource, that there is no
// agreement, or that half or all of its migration is done. The table's rows that stay are those of resources that move.
var (
	progress = regexp.MustCompile(`^\d\d:\d\d  `)
	told     = regexp.MustCompile(`^\d\d:\d\d  (?:step |server-\d is (?:ready|killed|paused)|(\w+): .*(no agreement|50%|migration done, [1-9]))`)
	row      = regexp.MustCompile(`^\S+ {2,}\S+/?\S* {2,}[\d,]+ {2,}\S+$`)
	moving   = regexp.MustCompile(`^(?:gadgets|mutatingadmission)`)
)

// shortened returns the text without the lines that are left out.
func shortened(text string) string {
	var kept strings.Builder
	seen := map[string]bool{}
	for l := range strings.Lines(text) {
		plain := strings.TrimRight(l, "\n")
		if progress.MatchString(plain) {
			m := told.FindStringSubmatch(plain)
			if m == nil || m[1] != "" && seen[m[1]+m[2][:2]] {
				continue
			}
			if m[1] != "" {
				seen[m[1]+m[2][:2]] = true
			}
		} else if row.MatchString(plain) && !moving.MatchString(plain) {
			continue
		}
		kept.WriteString(l)
	}
	return kept.String()
}

// Measures in pixels: of a letter, of a line, and around the text.
const (
	letter = 7.83
	line   = 18
	margin = 16
)

// svg draws the lines of a text. Lines that begin with PASS, or FAIL, stand out.
func svg(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	columns := 0
	for _, l := range lines {
		columns = max(columns, utf8.RuneCountInString(l))
	}
	width, height := int(float64(columns)*letter)+2*margin, len(lines)*line+2*margin
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d">
<style>
rect { fill: #f6f8fa; stroke: #d0d7de } text { fill: #1f2328; font: 13px ui-monospace, Menlo, Consolas, monospace; white-space: pre }
.pass { fill: #1a7f37; font-weight: bold } .fail { fill: #cf222e; font-weight: bold }
@media (prefers-color-scheme: dark) {
rect { fill: #0d1117; stroke: #30363d } text { fill: #e6edf3 } .pass { fill: #3fb950 } .fail { fill: #f85149 }
}
</style>
<rect x="0.5" y="0.5" width="%d" height="%d" rx="6"/>
`, width, height, width, height, width-1, height-1)
	for i, l := range lines {
		if l == "" {
			continue
		}
		fmt.Fprintf(&out, `<text x="%d" y="%d"%s xml:space="preserve">%s</text>`+"\n", margin, margin+(i+1)*line-5, class(l), escaped(l))
	}
	out.WriteString("</svg>\n")
	return out.String()
}

func class(l string) string {
	for prefix, name := range map[string]string{"PASS": "pass", "FAIL": "fail"} {
		if strings.HasPrefix(l, prefix) {
			return ` class="` + name + `"`
		}
	}
	return ""
}

func escaped(l string) string {
	var out strings.Builder
	_ = xml.EscapeText(&out, []byte(l)) // a Builder takes everything
	return out.String()
}
