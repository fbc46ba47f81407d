//! The configuration: mistakes in it and in commands, and changes of it while the host runs.
//!
//! Not here: what each key of it does (the room of the feature), how it is read (unit tests of the host).

mod bad_input;
mod reload;
