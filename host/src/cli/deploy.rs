//! `tqhost deploy`: puts a version of a plugin in place, and waits until every host has taken or refused it.
//!
//! In: a handler's file. Out: the file in `plugins_dir`, with a label if one is given; the verdict of each
//! host that runs; exit code 0 only if all of them took it. If every host refused the version, the one before
//! it is put back.
//!
//! Not here: what a verdict is (`operations::deploy`), the section with the label (`sandbox::build_section`),
//! the files beside the plugin's (`place`).

mod place;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use clap::Args;
use serde::Serialize;

use super::context::{connect_if_running, operator};
use super::exit::{CommandError, CommandResult};
use super::files::{self, FileContent, digest_of, read_handler};
use super::output::{Out, Paint, Tone};
use super::progress::{CommandProgress, interrupted};
use super::table::{Cell, TextTable};
use super::text::{self, plural};
use crate::builds::{BuildNote, Builds};
use crate::config::Config;
use crate::config::units::{parse_duration, show_duration};
use crate::operations::changes::{self, ChangeKind, ChangeView};
use crate::operations::{self, DeployWatch, HostVerdict, Taken, check_deployable, known_builds, patiently};
use crate::plugins;
use crate::queue::Link;
use crate::queue::hosts::{self, HostInfo};
use crate::sandbox::{check_names, with_build, without_build};
use place::{lock, put, remember, remembered};

/// The time from one look at the announcements of hosts to the next.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(super) struct DeployArgs {
    /// The handler's file. It goes to the plugins_dir of this configuration, and only hosts that see it there
    /// take it
    file: PathBuf,
    /// The plugin's name [default: that of the file]
    #[arg(long, value_name = "PLUGIN")]
    plugin: Option<String>,
    /// The version's name for people, like v1.4. It is written into the file that is put in place, with the
    /// time, the user, and the commit if the handler's file is in a work tree of git
    #[arg(long, value_name = "LABEL")]
    label: Option<String>,
    /// Wait no longer than this until all hosts have taken it
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    wait: Duration,
}

/// The whole output as JSON. The names are stable.
#[derive(Debug, Serialize)]
struct DeployView {
    plugin: String,
    /// SHA-256 of the file that was put in place.
    version: String,
    #[serde(flatten)]
    build: BuildNote,
    file: PathBuf,
    /// The hosts that run now and use the plugin.
    hosts: Vec<HostVerdict>,
    /// SHA-256 of the version before it, if its file is in place again.
    put_back: Option<String>,
    /// Whether all of them took it.
    ok: bool,
}

/// A file that is to be put in place.
struct NewFile {
    bytes: Vec<u8>,
    digest: String,
    build: BuildNote,
    /// SHA-256 of the file as it was given, and of its handler without a label.
    originals: [String; 2],
}

impl NewFile {
    /// Whether this is the handler of the version `digest`, whatever label that version has.
    fn is_version(&self, digest: &str, build: Option<&BuildNote>) -> bool {
        self.digest == digest
            || self.originals.iter().any(|original| original.as_str() == digest)
            || build.is_some_and(|build| digest_of(&with_build(&self.bytes, build)) == digest)
    }
}

/// Whether the file that was there before is in place again.
enum PutBack {
    /// It was not to be put back.
    No,
    Done(FileContent),
    /// Another file has replaced the new one meanwhile, and stays.
    Overtaken,
}

impl PutBack {
    /// The file that is in place again.
    fn done(&self) -> Option<&FileContent> {
        match self {
            PutBack::Done(before) => Some(before),
            PutBack::No | PutBack::Overtaken => None,
        }
    }
}

pub(super) async fn run(config: &Config, args: DeployArgs, out: &mut Out) -> CommandResult {
    let plugin = plugin_name(config, &args)?;
    if let Some(source) = config.plugins.get(&plugin).and_then(|plugin| plugin.source.as_ref()) {
        let (file, source) = (args.file.display(), source.to_string());
        return Err(CommandError::Usage(format!(
            "plugin {plugin} comes from a registry (plugins.{plugin}.source): push {file} with \
             `tqhost plugins push {file} {}`",
            source.split('@').next().unwrap_or(&source)
        )));
    }
    let shown = args.file.display();
    let read = read_handler(&args.file).await?;
    check_names(&read).map_err(|error| anyhow!("{shown}: {error}; nothing was put in place"))?;
    let target = config.plugins_dir.join(format!("{plugin}.wasm"));
    // It is held until the command ends.
    let _lock = lock(&target, &plugin)?;
    let before = files::read(config, &plugin).content.and_then(Result::ok);
    let new = new_file(read, &args, &target, before.as_ref())?;
    let link = connect_if_running(config).await?;
    let mut hosts = Vec::new();
    if let Some(link) = &link {
        hosts = hosts::list(link).await?;
        let builds = all_builds(&hosts, &target, before.as_ref(), &new);
        check_deployable(link, &plugin, &builds, |digest, build| new.is_version(digest, build)).await?;
    }
    let is_in_place = before.as_ref().is_some_and(|before| before.digest == new.digest);
    let watch = DeployWatch::new(&hosts, &plugin, &new.digest, is_in_place);
    if !is_in_place {
        remember(&target, &new.digest, &new.build)
            .and_then(|()| put(&target, &new.bytes))
            .with_context(|| format!("cannot put {} in place; hosts go on as before", target.display()))?;
        let words = new.build.words(&new.digest);
        note(link.as_ref(), &plugin, &format!("{words} was put in place")).await;
    }
    let has_hosts = !watch.verdicts(&hosts).is_empty();
    let verdicts = match &link {
        Some(link) if has_hosts => {
            if is_in_place {
                // Hosts try a content again that failed before.
                operations::reload(link, &plugin, &operator()).await?;
            }
            verdicts(link, &watch, args.wait).await?
        }
        _ => Vec::new(),
    };
    let ok = verdicts.is_empty() != has_hosts && verdicts.iter().all(|host| host.state == Taken::Active);
    let back = put_back(config, &plugin, &new.digest, &verdicts, before.filter(|_| !is_in_place))?;
    if let Some(before) = back.done() {
        let words = new.build.words(&new.digest);
        let detail = format!("no host took {words}, and {} is in place again", before.version());
        note(link.as_ref(), &plugin, &detail).await;
    }
    let NewFile { digest: version, build, .. } = new;
    let put_back = back.done().map(|before| before.digest.clone());
    let view = DeployView { plugin, version, build, file: target, hosts: verdicts, put_back, ok };
    out.show(&view, |paint| render(&view, &back, has_hosts, args.wait, paint));
    if ok { Ok(()) } else { Err(CommandError::Reported) }
}

/// Adds a line to the log of changes.
async fn note(link: Option<&Link>, plugin: &str, detail: &str) {
    if let Some(link) = link {
        let change = ChangeView::new(ChangeKind::Deploy, &operator()).plugin(plugin).detail(detail);
        changes::note(link, change).await;
    }
}

/// The name of the plugin. It has to be one of the configuration, as no host would take another one.
fn plugin_name(config: &Config, args: &DeployArgs) -> CommandResult<String> {
    let of_file = || args.file.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
    let name = args.plugin.clone().or_else(of_file).unwrap_or_default();
    let names = files::plugin_names(config);
    if names.contains(&name) {
        return Ok(name);
    }
    let way_out = if args.plugin.is_none() { "; --plugin names another one than the file does" } else { "" };
    Err(CommandError::Usage(format!(
        "the configuration has no plugin {name:?}{way_out}. It has: {}",
        names.join(", ")
    )))
}

/// The file with its label. If the file in place has the same content and label, this is that file, since a
/// new time alone would make another version.
fn new_file(
    read: Vec<u8>,
    args: &DeployArgs,
    target: &Path,
    before: Option<&FileContent>,
) -> CommandResult<NewFile> {
    let digest = digest_of(&read);
    let originals = [digest.clone(), digest_of(&without_build(&read))];
    let file =
        |bytes: Vec<u8>, build: BuildNote| NewFile { digest: digest_of(&bytes), bytes, build, originals };
    let Some(label) = &args.label else {
        // The build may be in a file beside the plugin's.
        let build = plugins::build_of(target, &read, &digest).unwrap_or_default();
        return Ok(file(read, build));
    };
    let build = BuildNote::now(label, commit(&args.file), operator());
    if build.label.as_ref() != Some(label) {
        let text = "--label: write 1 to 60 characters, without control characters and outer spaces";
        return Err(CommandError::Usage(text.into()));
    }
    if let Some(before) = before
        && (&before.build.label, &before.build.commit) == (&build.label, &build.commit)
        && without_build(&before.bytes) == without_build(&read)
    {
        return Ok(file(before.bytes.clone(), before.build.clone()));
    }
    Ok(file(with_build(&read, &build), build))
}

/// The commit of the work tree of git in which the file is.
fn commit(file: &Path) -> Option<String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(["rev-parse", "--verify", "HEAD"]).stdin(Stdio::null());
    let told = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(told.stdout).ok()?.trim().to_owned())
}

/// The known builds, by which a withdrawn version is recognised: the builds of the hosts, and of the files
/// that a deploy put in place on this machine.
fn all_builds(hosts: &[HostInfo], target: &Path, before: Option<&FileContent>, new: &NewFile) -> Builds {
    let mut builds = known_builds(hosts);
    if let Some(before) = before {
        builds.add(&before.digest, before.build.clone());
    }
    builds.add(&new.digest, new.build.clone());
    remembered(target).into_iter().for_each(|(digest, build)| builds.add(&digest, build));
    builds
}

/// Waits until each host that runs has told its verdict.
async fn verdicts(link: &Link, watch: &DeployWatch, wait: Duration) -> CommandResult<Vec<HostVerdict>> {
    let end = Instant::now() + wait;
    let waiting = async {
        loop {
            let verdicts = watch.verdicts(&patiently(|| hosts::list(link)).await?);
            let are_told = verdicts.iter().all(|host| host.state != Taken::NoAnswer);
            // While all hosts are restarted, there are no verdicts.
            if (are_told && !verdicts.is_empty()) || Instant::now() >= end {
                return Ok::<_, CommandError>(verdicts);
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    let cut = || interrupted("the file is in place, and `tqhost plugins` tells what hosts make of it");
    CommandProgress::begin()?.unless_interrupted(Box::pin(waiting)).await.ok_or_else(cut)?
}

/// Puts the file back that was there before, if every host has refused the new one, and it is still in place.
fn put_back(
    config: &Config,
    plugin: &str,
    new: &str,
    verdicts: &[HostVerdict],
    before: Option<FileContent>,
) -> CommandResult<PutBack> {
    let refused = |host: &HostVerdict| matches!(host.state, Taken::Failed | Taken::Quarantined);
    let Some(before) = before.filter(|_| !verdicts.is_empty() && verdicts.iter().all(refused)) else {
        return Ok(PutBack::No);
    };
    let file = files::read(config, plugin);
    if file.content.and_then(Result::ok).is_none_or(|content| content.digest != new) {
        return Ok(PutBack::Overtaken);
    }
    put(&file.path, &before.bytes).with_context(|| {
        format!("every host has refused it, and {} cannot be put back as it was", file.path.display())
    })?;
    Ok(PutBack::Done(before))
}

fn render(view: &DeployView, back: &PutBack, has_hosts: bool, wait: Duration, paint: Paint) -> String {
    let DeployView { plugin, version, build, file, hosts, ok, .. } = view;
    let version = text::escape(&build.words(version));
    let mut parts = vec![format!("version {version} of {plugin} was put in place: {}", file.display())];
    if !hosts.is_empty() {
        parts.push(render_verdicts(hosts, paint));
    }
    let count = |state: Taken| hosts.iter().filter(|host| host.state == state).count() as u64;
    let silent = count(Taken::NoAnswer);
    parts.push(match back {
        _ if *ok && !has_hosts => {
            "No host that runs uses the plugin: hosts take it when they start.".to_owned()
        }
        _ if *ok && hosts.len() == 1 => "The host took it.".to_owned(),
        _ if *ok => format!("All {} hosts took it.", hosts.len()),
        PutBack::Done(before) => format!(
            "No host took it, and the file before it is in place again: {}. Repair the new one; `tqhost try` \
             runs it without a host. One in quarantine may run again after `tqhost lift {plugin}`.",
            before.version()
        ),
        PutBack::Overtaken => format!(
            "No host took it, and another file has replaced it meanwhile, so the one before it was not put \
             back: `tqhost plugins {plugin}` tells what hosts make of the file."
        ),
        PutBack::No if hosts.is_empty() => "No host runs any more: start one.".to_owned(),
        PutBack::No if silent > 0 => format!(
            "{} did not take it within {}. A host takes files from its own plugins_dir: put the file there, \
             too. Otherwise it may still compile: `tqhost plugins {plugin}` tells.",
            plural(silent, "host"),
            show_duration(wait)
        ),
        PutBack::No => format!(
            "{} refused it, and goes on with the version before it. Deploy another one; `tqhost plugins \
             {plugin}` tells more.",
            plural(count(Taken::Failed) + count(Taken::Quarantined), "host")
        ),
    });
    parts.join("\n")
}

fn render_verdicts(hosts: &[HostVerdict], paint: Paint) -> String {
    let mut table = TextTable::with_spare(&["WHY", "HOST"]).names(["HOST"]).fixed(["VERDICT"]).texts(["WHY"]);
    for HostVerdict { host, state, on_probation, why } in hosts {
        let (word, tone) = match (state, on_probation) {
            (Taken::Active, true) => ("taken, on probation", Tone::Good),
            (Taken::Active, false) => ("taken", Tone::Good),
            (Taken::Failed, _) => ("failed", Tone::Bad),
            (Taken::Quarantined, _) => ("quarantined", Tone::Bad),
            (Taken::NoAnswer, _) => ("no answer", Tone::Warning),
        };
        table.row([host.into(), Cell::tone(word, tone), Cell::known(why.as_ref())]);
    }
    table.render(paint)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn verdict(state: Taken) -> HostVerdict {
        HostVerdict { host: "a".to_owned(), state, on_probation: false, why: None }
    }

    #[test]
    fn a_file_is_put_back_only_over_the_one_that_was_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = files::tests::config(folder.path());
        let path = config.plugins_dir.join("p.wasm");
        let write = |content: &str| fs::write(&path, content).expect("write");
        let before = || files::read(&config, "p").content.and_then(Result::ok);
        write("old");
        let [first, second, third] = [(); 3].map(|()| before());
        let new = digest_of(b"new");
        let refused = [verdict(Taken::Failed), verdict(Taken::Quarantined)];
        let back =
            |old, verdicts: &[HostVerdict]| put_back(&config, "p", &new, verdicts, old).expect("no error");
        let read = || fs::read_to_string(&path).expect("a file");

        write("new");
        let some_wait = [verdict(Taken::Failed), verdict(Taken::NoAnswer)];
        assert!(matches!(back(first, &some_wait), PutBack::No) && read() == "new");
        write("newer");
        assert!(matches!(back(second, &refused), PutBack::Overtaken) && read() == "newer");
        write("new");
        let done = back(third, &refused);
        assert_eq!((done.done().map(|old| &*old.digest), &*read()), (Some(&*digest_of(b"old")), "old"));
    }

    #[test]
    fn a_handler_is_known_again_under_any_label() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("p.wasm");
        let handler = b"\0asm\x0d\0\x01\0";
        let labelled = |label: &str, built_at| {
            let label = Some(label.to_owned());
            let build = BuildNote { label, built_at: Some(built_at), ..BuildNote::default() };
            let bytes = with_build(handler, &build);
            let originals = [digest_of(handler), digest_of(handler)];
            NewFile { digest: digest_of(&bytes), bytes, build, originals }
        };
        let (first, second) = (labelled("v1", 1), labelled("v1", 2));
        assert_ne!(first.digest, second.digest);
        assert!(remembered(&target).is_empty());
        remember(&target, &first.digest, &first.build).expect("write");
        let builds = all_builds(&[], &target, None, &second);
        assert!(second.is_version(&first.digest, builds.of(&first.digest)));
        assert!(second.is_version(&digest_of(handler), None));
        assert!(!second.is_version(&first.digest, None));
        assert!(!second.is_version(&digest_of(b"other"), builds.of(&first.digest)));
    }
}
