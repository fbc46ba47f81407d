//! Commands: `tqhost` in the hands of an operator, the doctor, the way in and out, the admin endpoints, the
//! demo, the commands of the pages, the script of their site, what operators do with many tasks at once
//! (`desk`), an incident, Ctrl-C, a Redis that does not fit, and what the HTTP API can do, too
//! (`as_the_api`).
//!
//! Not here: commands that fail because of a mistake (`config::bad_input`), `tqhost try` and `tqhost new`
//! (`handlers::authors`).

mod adopt;
mod as_the_api;
mod commands;
mod demo;
mod desk;
mod doctor;
mod examples;
mod give_back;
mod incident;
mod interrupts;
mod misfits;
pub mod pages;
mod retry;
mod site;
