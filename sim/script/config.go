package script

import (
	"fmt"
	"strconv"
	"strings"
)

// Config holds the settings, besides events, in which worlds differ.
type Config struct {
	// Slots is how many servers there can be at a time, at most 4.
	Slots int
	// Page and Txn are how many objects a rewrite reads and judges at a time; it writes each in
	// a transaction of its own.
	Page, Txn int
	// Under is how many of these transactions a rewrite has under way at once, at most 4.
	Under int
	// More is how many more built-in resources servers report: with eight or more of them
	// they work with lists.
	More int
	// Census, if it is 1, makes triggers count the stored objects before a stored set or storedVersions shrink. If it
	// is 0 they believe what migrations say, as where nobody can read etcd. So each of the two lines of defence is
	// tested without the other.
	Census int
	// Host is how many servers the cluster has to which this world's servers report: then they are replicas of an
	// aggregated API server. 0: they are a cluster's own.
	Host int
	// Lag says, if it is 1, that triggers list migrations as their watch has shown them.
	Lag int
}

// DefaultConfig is the smallest world in which everything can happen.
func DefaultConfig() Config { return Config{Slots: 3, Page: 2, Txn: 1, Under: 1} }

// String prints the configuration as a script's first line has it.
func (c Config) String() string {
	return fmt.Sprintf("slots=%d page=%d txn=%d under=%d more=%d lag=%d census=%d host=%d", c.Slots, c.Page, c.Txn, c.Under, c.More, c.Lag, c.Census, c.Host)
}

// ParseConfig reads what String prints; a field that is missing has its default.
func ParseConfig(text string) (Config, error) {
	c := DefaultConfig()
	for _, word := range strings.Fields(text) {
		name, value, _ := strings.Cut(word, "=")
		n, err := strconv.Atoi(value)
		field, ok := map[string]*int{"slots": &c.Slots, "page": &c.Page, "txn": &c.Txn, "under": &c.Under, "more": &c.More, "lag": &c.Lag, "census": &c.Census, "host": &c.Host}[name]
		if err != nil || !ok {
			return c, fmt.Errorf("configuration %q: want slots, page, txn, under, more, lag, census or host, =, and a number", word)
		}
		*field = n
	}
	if c.Slots < 1 || c.Slots > MaxSlots || c.Host < 0 || c.Host > MaxSlots || c.Page < 1 || c.Txn < 1 || c.Under < 1 || c.Under > MaxUnder || c.More < 0 {
		return c, fmt.Errorf("configuration %q: want 1 to %d slots, pages and pieces of at least 1, and 1 to %d transactions under way", text, MaxSlots, MaxUnder)
	}
	return c, nil
}
