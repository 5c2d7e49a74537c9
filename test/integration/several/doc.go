// Package several tests belay where there are several API servers: each has caches of its
// own, which lag behind the other's by however long, and one storage decides.
package several
