package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

// TestPicture: an SVG is well formed, holds every line as it was, and is as wide as the longest.
func TestPicture(t *testing.T) {
	text := "a <b> & \"c\"  d\n\n" + strings.Repeat("x", 100) + "\nPASS in 1 s\n"
	picture := svg(text)
	var lines []string
	decoder := xml.NewDecoder(strings.NewReader(picture))
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		start, ok := token.(xml.StartElement)
		if !ok || start.Name.Local != "text" {
			continue
		}
		var drawn string
		if err := decoder.DecodeElement(&drawn, &start); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, drawn)
	}
	if got, want := strings.Join(lines, "\n"), strings.ReplaceAll(strings.TrimSpace(text), "\n\n", "\n"); got != want {
		t.Errorf("it shows %q, want %q", got, want)
	}
	if !strings.Contains(picture, ` width="815" `) || strings.Count(picture, `class="pass"`) != 1 {
		t.Error(picture)
	}
}

// TestShortened: the lines of the demo on its steps and on the resources that move stay, each once,
// as does all that it says at the end.
func TestShortened(t *testing.T) {
	const text = `00:29  step 2 of 5: roll the servers
00:29  server-1 is stopping, release 1.36
00:31  gadgets: server-1 v1, server-2 v2; no agreement; stored set [v1 v2]; migration done, 0 objects
00:32  gadgets: server-1 v1, server-2 v2; no agreement; stored set [v1 v2]; migration done, 0 objects
00:32  server-1 is ready, release 1.37
00:36  gadgets: server-1 v2, server-2 v2; agreement on v2; stored set [v1 v2]; migration [######..........] 40%
00:37  gadgets: server-1 v2, server-2 v2; agreement on v2; stored set [v1 v2]; migration [########........] 50%
00:38  gadgets: server-1 v2, server-2 v2; agreement on v2; stored set [v2]; migration done, 2,536 objects
00:39  gadgets: server-1 v2, server-2 v2; agreement on v2; stored set [v2]; migration done, 2,536 objects

RESOURCE                   ENCODING IN ETCD      OBJECTS   STORED SET
configmaps                 v1                    5         v1
gadgets.demo.concord.dev   demo.concord.dev/v2   5,172     demo.concord.dev/v2

acknowledged writes   11,962, lost 0

PASS in 69.0s
`
	lines := strings.SplitAfter(text, "\n")
	want := lines[0] + strings.Join(lines[2:3], "") + lines[4] + lines[6] + lines[7] + lines[9] + lines[10] + strings.Join(lines[12:], "")
	if got := shortened(text); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
