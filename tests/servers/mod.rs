//! More than one server: Redis Cluster, and a primary that Sentinels watch.
//!
//! Not here: what a single server does to a host (`faults`).

mod away;
mod cluster;
mod failovers;
mod forgotten;
mod frozen;
mod half_moved;
mod relay;
mod remembered;
mod sentinel;
mod storm;
mod turmoil;
