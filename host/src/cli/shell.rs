//! `tqhost completions` and `tqhost man`: what a shell and a reader of manuals need of the command line.
//!
//! In: the definition of the command line. Out: a script or pages, on stdout or in a folder. They need no
//! configuration.

use std::fs;

use anyhow::{Context, anyhow};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use serde_json::json;

use super::args::ManArgs;
use super::examples::command;
use super::exit::CommandError;
use super::output::Out;

pub(super) fn completions(shell: Shell, out: &mut Out) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "tqhost", &mut script);
    let script = String::from_utf8(script).context("the script is not UTF-8")?;
    match out.json {
        true => out.json(&json!({ "shell": shell.to_string(), "script": script })),
        false => out.text(&script),
    }
    Ok(())
}

pub(super) fn man(args: &ManArgs, out: &mut Out) -> Result<(), CommandError> {
    let mut all = command();
    if let Some(folder) = &args.out {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        clap_mangen::generate_to(all, folder)
            .with_context(|| format!("cannot write the pages to {}", folder.display()))?;
        if out.json {
            out.json(&json!({ "folder": folder }));
        } else {
            out.line(format!("The pages are in {}: man -l {0}/tqhost.1", folder.display()));
        }
        return Ok(());
    }
    all.build();
    let mut command: &Command = &all;
    for name in &args.command {
        let below = command.find_subcommand(name).filter(|below| !below.is_hide_set());
        command = below.ok_or_else(|| {
            CommandError::Usage(format!(
                "there is no command `{}`: tqhost --help lists them",
                args.command.join(" ")
            ))
        })?;
    }
    let mut page = Vec::new();
    Man::new(command.clone())
        .render(&mut page)
        .map_err(|error| anyhow!(error).context("cannot write the page"))?;
    let page = String::from_utf8(page).context("the page is not UTF-8")?;
    match out.json {
        true => out.json(&json!({ "page": page })),
        false => out.text(&page),
    }
    Ok(())
}
