//! `tqhost new`: a folder with a handler's project, which builds with `make` and passes its own test.
//!
//! In: a name and a language. Out: the folder with all files, or no folder and an error. Not here: the
//! content of the files (`templates`).

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context, anyhow};
use clap::Args;
use serde_json::json;

use super::exit::{CommandError, CommandResult};
use super::output::Out;
use super::templates::{self, Language, LanguageWords, ProjectFile, Starter};
use crate::config::check_name;

#[derive(Debug, Args)]
pub(super) struct NewArgs {
    /// The handler's name, and the folder's: letters, digits, dots, dashes and underscores
    name: String,
    /// The language to write it in
    #[arg(long, value_name = "LANGUAGE", default_value = "rust")]
    lang: Language,
    /// The handler to begin with: words counts words, model asks a server with OpenAI's interface
    #[arg(long, value_name = "TEMPLATE", default_value = "words")]
    template: Starter,
}

pub(super) fn run(args: &NewArgs, out: &mut Out) -> CommandResult {
    let name = &args.name;
    check_name(name).map_err(|why| CommandError::Usage(format!("the name {name:?} {why}")))?;
    if name.starts_with('-') {
        return Err(CommandError::Usage(format!(
            "the name {name:?} must not begin with a dash: commands would take it for an option"
        )));
    }
    let files = templates::files(args.lang, args.template, name);
    let folder = Path::new(name);
    match fs::create_dir(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(anyhow!("{name} is there already: take another name, or remove it").into());
        }
        made => made.with_context(|| format!("cannot make the folder {name}"))?,
    }
    if let Err(error) = files.iter().try_for_each(|file| write(folder, file)) {
        // The folder was made here, so nothing else is in it.
        let _ = fs::remove_dir_all(folder);
        return Err(anyhow::Error::new(error).context(format!("cannot write the files of {name}")).into());
    }
    let LanguageWords { language, needs, .. } = templates::words(args.lang);
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let view = json!({ "folder": name, "language": language, "build": "make", "files": paths });
    out.show(&view, |_| {
        format!(
            "{name} is a handler in {language}; it needs {needs}. Next:\n  cd {name}\n  make test\n\
             Its README.md tells the rest."
        )
    });
    Ok(())
}

fn write(folder: &Path, file: &ProjectFile) -> io::Result<()> {
    let path = folder.join(&file.path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mode = if file.is_program { 0o755 } else { 0o644 };
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(file.text.as_bytes())
}
