package evolve

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/concord-dev/concord/agree"
)

// Identity is the key of objects that are stored as they are, as the provider is called.
const Identity = "identity"

// KeyOf names the encryption key of objects in an encoding: its Seal, Identity, or Unknown.
func KeyOf(e agree.Encoding) string {
	switch {
	case e == Unknown:
		return string(Unknown)
	case e.Seal() == "":
		return Identity
	default:
		return string(e.Seal())
	}
}

// KeysOf returns the keys of several encodings, each once, in their order.
func KeysOf(encodings []agree.Encoding) []string {
	var keys []string
	for _, e := range encodings {
		if key := KeyOf(e); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Encrypts reports whether one of the encodings is encrypted.
func Encrypts(encodings []agree.Encoding) bool {
	return slices.ContainsFunc(encodings, func(e agree.Encoding) bool { return e.Seal() != "" })
}

// removable returns the keys that were reported since the StorageVersion exists, Identity
// among them, and that no object in the stored set needs. That follows from the meaning of the
// stored set: an encoding leaves it only by a migration after which no
// object had it, and enters it before it can be relied on that none has. There is none
// where nothing was ever encrypted, and while the stored set holds Unknown.
func removable(h agree.History, stored []agree.Encoding) []string {
	needed := sets.New(KeysOf(stored)...)
	if needed.Has(string(Unknown)) {
		return nil
	}
	known := sets.New[string]()
	encrypted := false
	for e := range h.Last {
		if e != Unknown && e.Seal().Known() {
			known.Insert(KeyOf(e))
			encrypted = encrypted || e.Seal() != ""
		}
	}
	if !encrypted {
		return nil
	}
	return sets.List(known.Difference(needed))
}
