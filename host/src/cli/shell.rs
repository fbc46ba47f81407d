//! `tqhost completions` and `tqhost man`: the command line as a script for a shell, and as pages of a manual.
//!
//! In: the definition of the command line. Out: a script or pages, on stdout or in a folder. They need no
//! configuration. Not here: the names for which a script asks (`complete`).

use std::fs;

use anyhow::{Context, anyhow};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use serde_json::json;

use super::args::ManArgs;
use super::examples::command;
use super::exit::{CommandError, CommandResult};
use super::output::Out;

/// Completes an argument with names of the configuration if there are any, else as the script of clap does.
const BASH_NAMES: &str = r#"
_tqhost_names() {
    COMPREPLY=($(tqhost complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    ((${#COMPREPLY[@]})) || _tqhost "$@"
}
complete -F _tqhost_names -o bashdefault -o default tqhost
"#;
const FISH_NAMES: &str = r#"
complete -c tqhost -n "not string match -q -- '-*' (commandline -ct)" \
    -a "(tqhost complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)"
"#;
/// Stands in front of the last part of the script, which calls the functions before it.
const ZSH_NAMES: &str = r#"(( $+functions[_tqhost_names] )) ||
_tqhost_names() {
    local -a names
    names=(${(f)"$(tqhost complete -- "${tqhost_words[@]}" 2>/dev/null)"})
    if (( ${#names} )); then compadd -a names; else _default; fi
}

if [ "$funcstack[1]" ="#;
/// Keeps the words of the command line, before the script takes them apart.
const ZSH_WORDS: &str = r#"_tqhost() {
    local -a tqhost_words=("${(@)words[2,CURRENT]}")
"#;

/// Lets the script ask for names.
fn with_names(shell: Shell, script: String) -> String {
    match shell {
        Shell::Bash => script + BASH_NAMES,
        Shell::Fish => script + FISH_NAMES,
        Shell::Zsh => script
            .replace(":_default'", ":_tqhost_names'")
            .replacen("_tqhost() {\n", ZSH_WORDS, 1)
            .replacen("if [ \"$funcstack[1]\" =", ZSH_NAMES, 1),
        _ => script,
    }
}

pub(super) fn completions(shell: Shell, out: &mut Out) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "tqhost", &mut script);
    let script = with_names(shell, String::from_utf8(script).context("the script is not UTF-8")?);
    match out.json {
        true => out.json(&json!({ "shell": shell.to_string(), "script": script })),
        false => out.text(&script),
    }
    Ok(())
}

pub(super) fn man(args: &ManArgs, out: &mut Out) -> CommandResult {
    let mut all = command();
    if let Some(folder) = &args.out {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        clap_mangen::generate_to(all, folder)
            .with_context(|| format!("cannot write the pages to {}", folder.display()))?;
        let told = format!("The pages are in {}: man -l {0}/tqhost.1", folder.display());
        out.show(&json!({ "folder": folder }), |_| told);
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
