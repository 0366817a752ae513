package main

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// span is a time.
type span struct{ began, ended time.Time }

func (s span) took() time.Duration { return s.ended.Sub(s.began) }

// line is one of a log.
type line struct {
	at   time.Time
	text string
}

// header is that of klog, which tells no year.
var header = regexp.MustCompile(`^[IWEF](\d{4} \d{2}:\d{2}:\d{2}\.\d{6}) `)

// lines are those of a log with one of the messages and the fields, which stand beside each other.
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

// took is the time that a line tells, which ends with it.
func (l line) took() (span, bool) {
	found := tookField.FindStringSubmatch(l.text)
	if found == nil {
		return span{}, false
	}
	d, err := time.ParseDuration(found[1])
	return span{l.at.Add(-d), l.at}, err == nil
}
