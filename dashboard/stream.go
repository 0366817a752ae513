package dashboard

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// beat is the time between two events when nothing changes, so that a connection that is
	// not one any more is noticed: the page takes it to be after three of them.
	beat = 3 * time.Second
	// slowest is how long a viewer may take to accept an event.
	slowest = 20 * time.Second
	// chunk is how many rows an event has: the page takes in each in a moment.
	chunk = 250
	// mostViewers bounds the cost of viewers.
	mostViewers = 50
)

// stream sends events until the viewer or the handler is gone: "picture" has the picture, "rows" has changed rows and
// the names of rows that are gone, "whole" says that the viewer has all rows, and "beat" has no content.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request) {
	if h.viewing() >= mostViewers {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many look at this page", http.StatusServiceUnavailable)
		return
	}
	h.look(1)
	defer h.look(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	v := &viewer{out: w, control: http.NewResponseController(w), rows: map[string]string{}}
	if v.send("beat", "{}") != nil {
		return
	}
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for {
		s := h.snapshot()
		if err := v.show(s); err != nil {
			return
		}
		select {
		case <-s.replaced:
		case <-ticker.C:
			if v.send("beat", "{}") != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-h.ctx.Done():
			return
		}
	}
}

func (h *Handler) viewing() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.viewers
}

// viewer is one page, and the picture and rows that it has been shown.
type viewer struct {
	out     http.ResponseWriter
	control *http.ResponseController

	picture []byte
	rows    map[string]string
	whole   bool
}

// show sends the differences from the snapshot that was shown last.
func (v *viewer) show(s *snapshot) error {
	if s.picture == nil {
		return nil
	}
	if !bytes.Equal(v.picture, s.picture) {
		if err := v.send("picture", string(s.picture)); err != nil {
			return err
		}
		v.picture = s.picture
	}
	if s.partial {
		return nil
	}
	var changed, gone []string
	for _, name := range s.order {
		if text := s.rows[name]; v.rows[name] != text {
			changed = append(changed, text)
		}
	}
	for name := range v.rows {
		if _, still := s.rows[name]; !still {
			gone = append(gone, name)
		}
	}
	v.rows = s.rows
	slices.Sort(gone)
	if len(gone) > 0 {
		if err := v.send("rows", fmt.Sprintf(`{"rows":[],"gone":["%s"]}`, strings.Join(gone, `","`))); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(changed, chunk) {
		if err := v.send("rows", `{"rows":[`+strings.Join(part, ",")+`],"gone":[]}`); err != nil {
			return err
		}
	}
	if v.whole {
		return nil
	}
	v.whole = true
	return v.send("whole", "{}")
}

// send sends one event. Its data is JSON, and so has no line ends.
func (v *viewer) send(event, data string) error {
	// A connection that has no deadlines stays without them.
	_ = v.control.SetWriteDeadline(time.Now().Add(slowest))
	if _, err := fmt.Fprintf(v.out, "event: %s\ndata: %s\n\n", event, data); err != nil {
		return err
	}
	return v.control.Flush()
}
