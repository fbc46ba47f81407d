//! Generates the files that a handler in C includes and links: `c-bindings WIT FOLDER`.
//!
//! In: WIT, a folder with one world, or a file. Out, in FOLDER: `WORLD.h` and `WORLD.c`, the interface in C,
//! and `WORLD_component_type.o`, which tells the host the component's type. `scripts/build-languages.sh` runs
//! this program on the build machine.
//!
//! Not here: the generator, which is wit-bindgen.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::Resolve;

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [wit, folder] = &arguments[..] else {
        eprintln!("usage: c-bindings WIT FOLDER");
        return ExitCode::from(2);
    };
    match generate(wit, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // An error with its causes, on one line.
            eprintln!("c-bindings: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn generate(wit: &Path, folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(wit)?;
    let world = resolve.select_world(&[package], None)?;
    let mut files = Files::default();
    wit_bindgen_c::Opts::default().build().generate(&mut resolve, world, &mut files)?;
    fs::create_dir_all(folder)?;
    for (name, content) in files.iter() {
        fs::write(folder.join(name), content).map_err(|error| format!("cannot write {name}: {error}"))?;
    }
    Ok(())
}
