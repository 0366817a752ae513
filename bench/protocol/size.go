package main

import "time"

// size says how much is measured.
type size struct {
	// writes is how many objects of each resource are created and updated, one after the
	// other, on each side.
	writes int
	// starts is how often each side starts a first time, and again.
	starts int
	// apis is how often concord apis runs, and plans how often each side starts.
	apis, plans int
	// crds is how many CRDs three servers have to agree on, compared how many of them are
	// created without the protocol too, and creators how many clients create them at a time.
	crds, compared, creators int
	// writers write at the same time while a CRD changes, with a pause between writes in
	// the calm case.
	writers int
	pause   time.Duration
	// changes is how often the CRD changes on each side under calm writers, and
	// saturatedChanges under those without a pause.
	changes, saturatedChanges int
	// before and after are how long the writers write before a change and after it.
	before, after time.Duration
	// usedCRDs is how many CRDs are in use when open files are counted.
	usedCRDs int
	// crashes is how often each kind of server is killed, all at the same time.
	crashes int
	// objects is how many objects of each resource are rewritten, and rewrites how often,
	// with each number of servers.
	objects, rewrites int
	// sampled is how many objects are migrated one API write after the other.
	sampled int
}

var (
	full = size{
		writes: 2000,
		starts: 5,
		apis:   20, plans: 8,
		crds: 1000, compared: 200, creators: 8,
		writers: 32, pause: 300 * time.Millisecond,
		changes: 20, saturatedChanges: 5,
		before: 700 * time.Millisecond, after: 1500 * time.Millisecond,
		usedCRDs: 50,
		crashes:  2,
		objects:  10_000, rewrites: 2,
		sampled: 300,
	}
	small = size{
		writes: 30,
		starts: 1,
		apis:   2, plans: 1,
		crds: 30, compared: 20, creators: 8,
		writers: 32, pause: 300 * time.Millisecond,
		changes: 2, saturatedChanges: 1,
		before: 700 * time.Millisecond, after: 1500 * time.Millisecond,
		usedCRDs: 5,
		crashes:  1,
		objects:  500, rewrites: 1,
		sampled: 30,
	}
)
