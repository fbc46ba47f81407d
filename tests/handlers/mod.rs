//! Handlers: what they may do, how they misbehave, the languages that they are written in, and the tools of
//! their authors.
//!
//! Not here: how their files are loaded and replaced (`plugins`).

mod authors;
mod bad_versions;
mod blobs;
mod build_errors;
mod desk;
mod everyday;
mod go;
mod http;
mod http_call;
mod http_call_faults;
mod instances;
mod interviews;
mod isolation;
mod kb_vectorize;
mod kept;
mod languages;
mod llm;
mod published;
mod reports;
pub mod resume_model;
mod stock;
mod to_the_line;
mod together;
