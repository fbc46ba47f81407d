//! Plugins: their files, their compilation, the life of a version, many replacements.
//!
//! Not here: what a handler does in a task (`handlers`).

mod builds;
mod compiling;
mod files;
mod good_versions;
mod orders;
mod swaps;
mod versions;
