//! Proofs: random operations against a reference, guards that are missed when they are taken out of the
//! scripts, random faults under load, and resources that must not grow.
//!
//! Not here: the model that is checked in all its states (`tests/model`), the harness of the chaos test
//! (`tests/chaos/harness`), the long soak (`tests/soak`).

mod chaos;
mod guards;
mod property;
mod soak;
mod turns;
