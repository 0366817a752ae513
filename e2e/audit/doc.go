// Package audit judges a cluster from outside by what its etcd holds: it follows every
// put and delete in the order of etcd's revisions and checks each against the invariants
// that a raw store can show.
//
//   - I1: the encoding of every stored object is in its resource's stored set, or that
//     contains Unknown, or was computed for another (uid, epoch).
//   - I2: a put's encoding is one that a server reports at that revision; for writes that
//     name the server they were sent to, that server's.
//   - I3: while there is an agreement, every put is in it.
//   - I4: follows from I1, which is checked after every event.
//   - I5: a rewrite changes nothing but the encoding, and brings back no older write and no
//     deleted object.
//   - 3.6: a rewrite is in the encoding that all servers agree on.
//   - Keys: while a StorageState that is computed for the StorageVersion's (uid, epoch) calls a
//     key removable, no object of its resource is encrypted with it.
//   - I8: a custom resource's encoding is in its CRD's storedVersions.
//
// Ledger is pure: events in, violations out, over the account of package testbed/ledger.
package audit
