package wardle

import (
	"os"
	"strings"
	"testing"
)

// TestTenLines checks what the package doc and docs/library.md say of the lines marked "join".
func TestTenLines(t *testing.T) {
	source, err := os.ReadFile("wardle.go")
	if err != nil {
		t.Fatal(err)
	}
	marked := 0
	for i, line := range strings.Split(string(source), "\n") {
		code, comment, _ := strings.Cut(line, "//")
		isMarked := strings.TrimSpace(comment) == "join"
		if isMarked {
			marked++
		}
		uses := strings.Contains(code, "join") || strings.Contains(code, "j.") || strings.Contains(code, "j,")
		if uses && !isMarked && !strings.HasPrefix(strings.TrimSpace(line), "//") {
			t.Errorf("wardle.go:%d uses package join and is not marked: %s", i+1, line)
		}
	}
	if marked != 10 {
		t.Errorf("%d lines are marked, not ten", marked)
	}
}
