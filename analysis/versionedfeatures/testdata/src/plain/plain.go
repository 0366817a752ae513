package plain

var features = map[string]bool{"A": true}
