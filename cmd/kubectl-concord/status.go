package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/concord-dev/concord/cmd/program"
	"github.com/concord-dev/concord/status"
)

// watchEvery is the time between two looks of status -w.
const watchEvery = time.Second

// status prints the state of the cluster, once, or until ctx ends or a write fails.
func (p *plugin) status(ctx context.Context, out io.Writer, output string, watch bool) error {
	c, err := p.cluster()
	if err != nil {
		return err
	}
	var last string
	for {
		text, unread, err := c.screen(ctx, out, output)
		if err != nil && (!watch || last == "") {
			return err
		}
		if err != nil { // a server that restarts is worth watching
			text = fmt.Sprintf("%s\n\n%v\n", time.Now().Format(time.TimeOnly), err)
		}
		_, tty := terminal(out)
		if err := draw(out, text, &last, watch, tty); err != nil {
			return err
		}
		if !watch {
			return unread
		}
		select {
		case <-time.After(watchEvery):
		case <-ctx.Done():
			return nil
		}
	}
}

// screen returns the status as it is printed. unread is not nil if not everything could be read.
func (c *cluster) screen(ctx context.Context, out io.Writer, output string) (screen string, unread, err error) {
	o, err := c.glance(ctx)
	if err != nil {
		return "", nil, err
	}
	c.watchLeases(ctx, &o)
	if len(o.Unread) > 0 {
		unread = errors.New("not everything may be listed by this user")
	}
	now := status.Of(o)
	if output == "json" {
		var text strings.Builder
		err := program.PrintJSON(&text, now)
		return text.String(), unread, err
	}
	style, _ := terminal(out)
	return now.Text(style), unread, nil
}

// draw prints a screen. When watching, it replaces the last screen on a terminal; elsewhere it is printed after the
// last one if it differs.
func draw(out io.Writer, text string, last *string, watch, tty bool) error {
	first := *last == ""
	same := text == *last
	*last = text
	switch {
	case !watch:
	case tty:
		text = "\x1b[H\x1b[2J" + text
	case same:
		return nil
	case !first:
		text = "\n" + text
	}
	_, err := io.WriteString(out, text)
	return err
}
