package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// redraw is the time between two updates of the view.
const redraw = 200 * time.Millisecond

// screen shows the live view: redrawn in a terminal, else one line for each change.
type screen struct {
	out io.Writer
	// size returns a terminal's width and height; nil if out is none.
	size func() (width, height int)

	drawn int // lines on the terminal
	last  snapshot
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	file, ok := out.(*os.File)
	if ok && term.IsTerminal(int(file.Fd())) {
		s.size = func() (int, int) {
			width, height, err := term.GetSize(int(file.Fd()))
			if err != nil || width <= 0 || height <= 0 {
				return 80, 24
			}
			return width, height
		}
	}
	return s
}

// show follows the snapshots that look returns until ctx ends or stop is called, which returns when the
// last state is shown.
func (s *screen) show(ctx context.Context, look func() snapshot) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		ticker := time.NewTicker(redraw)
		defer ticker.Stop()
		for {
			s.update(look())
			select {
			case <-ticker.C:
			case <-ctx.Done():
				s.update(look())
				return
			}
		}
	})
	return func() {
		cancel()
		group.Wait()
	}
}

// update shows a snapshot. An error of the output is ignored, because the verdict does not depend on the view.
func (s *screen) update(now snapshot) {
	if s.size != nil {
		width, height := s.size()
		_, _ = io.WriteString(s.out, s.frame(render(now), width, height))
		return
	}
	for _, line := range changes(s.last, now) {
		_, _ = fmt.Fprintln(s.out, line)
	}
	s.last = now
}

// frame returns the text that replaces the lines drawn before by these, cut to the terminal.
func (s *screen) frame(lines []string, width, height int) string {
	lines = lines[:min(len(lines), max(height-1, 1))]
	var text strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&text, "\x1b[%dA\r", s.drawn)
	}
	text.WriteString("\x1b[J")
	for _, line := range lines {
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width])
		}
		text.WriteString(line + "\n")
	}
	s.drawn = len(lines)
	return text.String()
}
