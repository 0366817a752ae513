package evolve

import "github.com/concord-dev/concord/agree"

// StoredSet returns the encodings that objects may be stored in, for a reader such as a starting
// server: the stored set of the StorageState, and the encodings that the StorageVersion says
// were reported since. It holds Unknown where objects may have encodings that
// nobody can name. Either argument may be nil: the object does not exist, or cannot be read. The
// StorageState was read first.
func StoredSet(state *State, sv *StorageVersion) []agree.Encoding {
	var stored State
	if state != nil {
		stored = *state
	}
	switch {
	case sv == nil:
		return add(stored.Stored, Unknown)
	case state == nil, stored.Of.UID != sv.UID, stored.Of.Epoch > sv.History.Epoch, len(stored.Stored) == 0:
		return add(add(stored.Stored, Unknown), sv.History.Reported()...)
	default:
		return add(stored.Stored, sv.History.Since(stored.Of.Epoch)...)
	}
}
