// Package corpus holds the objects that benchmarks migrate, and the ways of migrating them:
// Concord's migration, raw transactions of etcd (the limit of what is possible), and one API
// write per object as existing migrators do it.
package corpus
