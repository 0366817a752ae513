package figures

import "strings"

// Header is the head of the table whose lines are Row.Markdown.
const Header = "| figure | measured | beside | ratio | target | verdict |\n|---|---:|---:|---:|---|---|\n"

// Markdown returns the row as one line of the table.
func (r Row) Markdown() string {
	beside, ratio, target := "", "", ""
	if r.Beside != nil {
		beside = quantity(r.Beside.Value, r.Unit) + " " + r.Beside.What
		ratio = number(r.Beside.Ratio)
		if r.Beside.High > 0 {
			ratio += " (" + number(r.Beside.Low) + " to " + number(r.Beside.High) + ")"
		}
	}
	if r.Target != nil {
		target = r.Target.text(r.Unit)
	}
	figure := r.Figure
	if r.Note != "" {
		figure += " (" + r.Note + ")"
	}
	cells := []string{figure, quantity(r.Value, r.Unit), beside, ratio, target, string(r.Verdict)}
	for i := range cells {
		cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}
