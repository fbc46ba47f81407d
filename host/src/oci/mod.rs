//! Plugins in registries of container images, as OCI artifacts: looked up, pulled and pushed.
//!
//! In: a reference. Out: the digest of its manifest, and the component, whose digest and size are those of
//! the manifest. The form is that of `wkg`: a config of the type `application/vnd.wasm.config.v0+json`, and
//! one layer of the type `application/wasm`.
//!
//! ```text
//! reference ─▶ manifest: digest, form, size ─▶ layer: no more than this size, then its digest ─▶ a file
//! ```
//!
//! A registry is not trusted. No answer is read further than its limit, no name of it becomes a path, and
//! what it says is shown only as far as it is a code. The credentials that docker has for it go to it and to
//! the service for tokens that it names, and nowhere else.
//!
//! Not here: when a registry is asked, and where the file goes (`plugins::pulls`); references
//! (`config::oci`).

mod auth;
mod call;
mod docker;
mod http;
mod manifest;
mod push;
mod repository;
#[cfg(test)]
mod tests;

pub(crate) use call::{OciError, TRANSFER, shown_digest};
pub(crate) use http::RegistryHttp;
pub(crate) use manifest::Layer;
pub(crate) use push::{Pushed, push};
pub(crate) use repository::Repository;
