package main

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// span is a period of time.
type span struct{ began, ended time.Time }

func (s span) took() time.Duration { return s.ended.Sub(s.began) }

// line is a line of a log.
type line struct {
	at   time.Time
	text string
}

// header matches klog's line header, which has no year.
var header = regexp.MustCompile(`^[IWEF](\d{4} \d{2}:\d{2}:\d{2}\.\d{6}) `)

// lines returns the lines of a log with one of the messages and the given fields, which stand next to each other.
func lines(output, fields string, messages ...string) (all []line) {
	for text := range strings.Lines(output) {
		if !strings.Contains(text, fields) || !slices.ContainsFunc(messages, func(m string) bool { return strings.Contains(text, `"`+m+`"`) }) {
			continue
		}
		found := header.FindStringSubmatch(text)
		if found == nil {
			continue
		}
		if at, err := time.ParseInLocation("0102 15:04:05.000000", found[1], time.Local); err == nil {
			all = append(all, line{at.AddDate(time.Now().Year(), 0, 0), text})
		}
	}
	return all
}

var tookField = regexp.MustCompile(` took="([^"]+)"`)

// took returns the time span that a line reports; the span ends at the line.
func (l line) took() (span, bool) {
	found := tookField.FindStringSubmatch(l.text)
	if found == nil {
		return span{}, false
	}
	d, err := time.ParseDuration(found[1])
	return span{l.at.Add(-d), l.at}, err == nil
}
