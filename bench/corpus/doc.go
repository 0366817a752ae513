// Package corpus holds the objects that benchmarks migrate, and the ways of migrating
// them: Concord's, the raw limit, and one API write per object as existing systems do.
package corpus
