//! Tests of the registry with real files in its folder.

mod unwatched;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::changes::Milestone;
use super::life::Candidate;
use super::retries::Pauses;
use super::status::PluginState;
use super::{Judged, Plugins, Ruling, Shelf, Source, Times, Version};
use crate::config;
use crate::queue::orders::Orders;
use crate::sandbox::Attempt;
use crate::sandbox::testing::{self, DONE, ECHO, embed, handler, module, outcome};
use crate::task::{Outcome, Task};

struct Folder {
    root: tempfile::TempDir,
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl Folder {
    fn new() -> Folder {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("plugins")).unwrap();
        Folder { root, stop: CancellationToken::new(), tracker: TaskTracker::new() }
    }

    fn plugin(&self) -> PathBuf {
        self.root.path().join("plugins/p.wasm")
    }

    /// Puts a file there in one step, as an editor or a careful build does.
    fn put(&self, bytes: &[u8]) {
        let temporary = self.root.path().join("plugins/.p.part");
        fs::write(&temporary, bytes).unwrap();
        fs::rename(temporary, self.plugin()).unwrap();
    }

    async fn start(&self) -> Plugins {
        self.start_with(Times::default(), config::Plugin::default()).await
    }

    /// Starts with `bytes` as the plugin: the registry, the channel of its versions, and the first one.
    async fn start_on(&self, bytes: &[u8]) -> (Plugins, Active, Arc<Version>) {
        self.put(bytes);
        let plugins = self.start().await;
        let mut active = plugins.subscribe("p");
        let first = active.borrow_and_update().clone().unwrap();
        (plugins, active, first)
    }

    async fn start_with(&self, times: Times, grants: config::Plugin) -> Plugins {
        self.start_ordered(times, grants, Orders::default()).await
    }

    async fn start_ordered(&self, times: Times, grants: config::Plugin, orders: Orders) -> Plugins {
        let names = BTreeMap::from([("p".to_owned(), grants)]);
        let path = |name: &str| self.root.path().join(name);
        let (sandbox, stop) = (testing::sandbox(), self.stop.clone());
        let (dir, pulled_dir, cache_dir) = (path("plugins"), path("pulled"), path("cache"));
        let (shelf, user_cache) = (Shelf::default(), None);
        let source = Source { sandbox, dir, pulled_dir, cache_dir, user_cache, orders, shelf };
        Plugins::start_with(times, source, names, stop, &self.tracker).await.unwrap()
    }

    fn cached(&self) -> Vec<PathBuf> {
        fs::read_dir(self.root.path().join("cache")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

type Active = watch::Receiver<Option<Arc<Version>>>;

/// Waits for the next published value.
async fn next(active: &mut Active) -> Option<Arc<Version>> {
    tokio::time::timeout(Duration::from_secs(20), active.changed())
        .await
        .expect("nothing was published")
        .unwrap();
    active.borrow_and_update().clone()
}

async fn result(version: &Version) -> Option<Vec<u8>> {
    match outcome(&version.handler.run(testing::attempt()).await.unwrap()) {
        Outcome::Completed { result, .. } => result,
        other => panic!("{other:?}"),
    }
}

/// Waits until the status is as wanted; failures publish nothing that could be waited for.
async fn until(plugins: &Plugins, wanted: impl Fn(&super::PluginStatus) -> bool) -> super::PluginStatus {
    let waiting = async {
        loop {
            let status = plugins.status().remove(0);
            if wanted(&status) {
                return status;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .expect("the status did not become what was wanted")
}

#[tokio::test]
async fn a_bad_file_is_tried_again_when_a_reload_is_ordered_and_not_for_one_before_the_start() {
    let folder = Folder::new();
    folder.put(b"text");
    let order = |all: &[(&str, u64)]| {
        let reloads = all.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect();
        Orders { reloads, ..Orders::default() }
    };
    let before = order(&[("p", 5)]);
    let plugins = folder.start_ordered(Times::default(), config::Plugin::default(), before).await;
    let is_refused = || plugins.entries()[0].life(|life| life.candidate == Candidate::Refused);
    // The last one is of a plugin that another host has.
    for known in [&[("p", 5)][..], &[("p", 5), ("q", 6)]] {
        plugins.order(order(known));
        assert!(is_refused(), "{known:?}");
    }
    assert_eq!(plugins.status()[0].figures.failed_reloads.get(), 1);
    plugins.order(order(&[("p", 6), ("q", 6)]));
    assert!(!is_refused());
    until(&plugins, |status| status.figures.failed_reloads.get() == 2).await;
    // Each other time is an order, also one of a clock that is behind.
    plugins.order(order(&[("p", 4), ("q", 6)]));
    until(&plugins, |status| status.figures.failed_reloads.get() == 3).await;
}

#[tokio::test]
async fn the_folder_may_come_later_and_be_made_anew() {
    let folder = Folder::new();
    let dir = folder.plugin().parent().map(Path::to_owned).unwrap();
    fs::remove_dir(&dir).unwrap();
    let plugins = folder.start().await;
    let mut active = plugins.subscribe("p");
    fs::create_dir(&dir).unwrap();
    folder.put(&handler(ECHO));
    next(&mut active).await.unwrap();
    fs::remove_dir_all(&dir).unwrap();
    assert!(next(&mut active).await.is_none());
    fs::create_dir(&dir).unwrap();
    folder.put(&handler(DONE));
    assert_eq!(result(&next(&mut active).await.unwrap()).await, None);
}

#[tokio::test]
async fn links_are_followed_and_what_is_no_file_is_reported() {
    let folder = Folder::new();
    let target = |name: &str| folder.root.path().join(name);
    fs::write(target("one"), handler(ECHO)).unwrap();
    fs::write(target("two"), handler(DONE)).unwrap();
    std::os::unix::fs::symlink(target("one"), folder.plugin()).unwrap();
    let plugins = folder.start().await;
    let mut active = plugins.subscribe("p");
    assert!(active.borrow_and_update().is_some());
    std::os::unix::fs::symlink(target("two"), target("plugins/link")).unwrap();
    fs::rename(target("plugins/link"), folder.plugin()).unwrap();
    assert_eq!(result(&next(&mut active).await.unwrap()).await, None);

    fs::remove_file(folder.plugin()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.plugin()).status().unwrap();
    assert!(made.success());
    let status = until(&plugins, |status| status.state == PluginState::Failed).await;
    insta::assert_snapshot!(status.error.unwrap(), @"it is not a regular file");
}

/// The handler with a mark: it does the same, and is another version.
fn marked(body: &str, mark: u8) -> Vec<u8> {
    // A custom section: its id, its size, the length of its name, the name, the content.
    handler(body).into_iter().chain([0, 6, 4, b'm', b'a', b'r', b'k', mark]).collect()
}

/// Runs an attempt as the worker does, for a task of this name.
async fn attempt(version: &Arc<Version>, id: usize) -> (Outcome, Ruling) {
    attempt_in("q", version, id).await
}

async fn attempt_in(queue: &str, version: &Arc<Version>, id: usize) -> (Outcome, Ruling) {
    let tasks = Arc::new(vec![Task { queue: queue.into(), id: id.to_string(), ..testing::task() }]);
    match version.run(Attempt { tasks, ..testing::attempt() }).await.unwrap().judged {
        Judged::Each(mut each) => each.remove(0),
        Judged::Split { message, .. } => panic!("{message}"),
    }
}

/// Has six tasks spoiled.
async fn spoil(version: &Arc<Version>) {
    for n in 0..6 {
        assert!(matches!(attempt(version, n).await, (Outcome::Failed { .. }, Ruling::GiveBack(_))));
    }
}

fn changes(plugins: &Plugins) -> Vec<Milestone> {
    plugins.status()[0].history.iter().map(|change| change.what).collect()
}

#[tokio::test]
async fn a_version_that_was_rolled_back_may_be_tried_again_after_another_content() {
    let folder = Folder::new();
    let (plugins, mut active, good) = folder.start_on(&handler(ECHO)).await;
    let bad = marked("unreachable", 1);
    folder.put(&bad);
    spoil(&next(&mut active).await.unwrap()).await;
    assert!(Arc::ptr_eq(&next(&mut active).await.unwrap(), &good), "the very version that was good");
    folder.put(&marked(DONE, 2));
    assert_eq!(result(&next(&mut active).await.unwrap()).await, None);
    assert_eq!((plugins.status()[0].state, plugins.status()[0].error.clone()), (PluginState::Active, None));
    let noted = folder.root.path().join("cache/p.quarantine");
    until(&plugins, |_| !noted.exists()).await;
    folder.put(&bad);
    assert_ne!(next(&mut active).await.unwrap().digest, good.digest);
}

#[tokio::test]
async fn tasks_of_two_queues_with_the_same_ids_are_all_counted() {
    let folder = Folder::new();
    let (_plugins, mut active, good) = folder.start_on(&handler(ECHO)).await;
    folder.put(&marked("unreachable", 1));
    let version = next(&mut active).await.unwrap();
    for queue in ["a", "b"] {
        for n in 0..3 {
            let (_, ruling) = attempt_in(queue, &version, n).await;
            assert!(matches!(ruling, Ruling::GiveBack(_)));
        }
    }
    assert!(Arc::ptr_eq(&next(&mut active).await.unwrap(), &good), "six tasks were spoiled");
}

#[tokio::test]
async fn without_the_good_versions_code_a_start_lets_the_queue_wait() {
    let folder = Folder::new();
    let (plugins, mut active, good) = folder.start_on(&handler(ECHO)).await;
    folder.put(&marked("unreachable", 1));
    spoil(&next(&mut active).await.unwrap()).await;
    let noted = folder.root.path().join("cache/p.quarantine");
    until(&plugins, |_| noted.exists()).await;
    for code in folder
        .cached()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "cwasm"))
    {
        fs::remove_file(code).unwrap();
    }
    let again = folder.start().await;
    let status = again.status().remove(0);
    assert_eq!((status.state, status.digest), (PluginState::Quarantined, None));
    insta::assert_snapshot!(status.error.unwrap().replace(&good.digest[..12], "GOOD"), @"
    rolled back to GOOD: it spoiled 6 tasks, and 0 ended well; trap: wasm `unreachable` instruction \
    executed: a panic, an abort or an uncaught exception without a word; `tqhost try --backtrace` says \
    where; GOOD cannot run in its place (it is not in the cache, and no host has kept its file): \
    put another version there
    ");
    assert!(again.subscribe("p").borrow().is_none());
}

#[tokio::test]
async fn a_first_version_that_traps_is_charged_and_is_no_version_to_go_back_to() {
    let folder = Folder::new();
    let (plugins, mut active, first) = folder.start_on(&handler("unreachable")).await;
    for n in 0..10 {
        assert!(matches!(attempt(&first, n).await, (Outcome::Failed { .. }, Ruling::AsUsual)));
    }
    assert_eq!(plugins.status()[0].state, PluginState::Active);
    folder.put(&marked("unreachable", 1));
    let second = next(&mut active).await.unwrap();
    assert!(!plugins.status()[0].on_probation);
    assert_eq!(attempt(&second, 0).await.1, Ruling::AsUsual);
}

#[tokio::test]
async fn a_version_on_probation_is_replaced_by_one_that_goes_back_to_the_last_good_one() {
    let folder = Folder::new();
    let (plugins, mut active, good) = folder.start_on(&handler(ECHO)).await;
    folder.put(&marked("unreachable", 1));
    let bad = next(&mut active).await.unwrap();
    // Removed first, as some do who copy.
    fs::remove_file(folder.plugin()).unwrap();
    assert!(next(&mut active).await.is_none());
    folder.put(&marked("unreachable", 2));
    let worse = next(&mut active).await.unwrap();
    // Attempts that still run on the first of them are given back, and change nothing else.
    spoil(&bad).await;
    assert!(!active.has_changed().unwrap());
    spoil(&worse).await;
    assert!(Arc::ptr_eq(&next(&mut active).await.unwrap(), &good));

    // A version that has passed is the one to go back to.
    folder.put(&marked(DONE, 3));
    let passed = next(&mut active).await.unwrap();
    for n in 0..5 {
        assert_eq!(attempt(&passed, n).await.1, Ruling::AsUsual);
    }
    assert!(
        !plugins.status()[0].on_probation
            && changes(&plugins).ends_with(&[Milestone::Loaded, Milestone::Confirmed])
    );
    folder.put(&marked("unreachable", 4));
    spoil(&next(&mut active).await.unwrap()).await;
    assert!(Arc::ptr_eq(&next(&mut active).await.unwrap(), &passed));
}

#[tokio::test]
async fn the_good_file_put_back_during_a_probation_needs_none() {
    let folder = Folder::new();
    let (plugins, mut active, _) = folder.start_on(&handler(ECHO)).await;
    folder.put(&marked("unreachable", 1));
    let bad = next(&mut active).await.unwrap();
    assert!(matches!(attempt(&bad, 0).await.1, Ruling::GiveBack(_)));
    folder.put(&handler(ECHO));
    let back = next(&mut active).await.unwrap();
    assert!(!plugins.status()[0].on_probation);
    spoil(&bad).await;
    assert!(Arc::ptr_eq(&plugins.subscribe("p").borrow().clone().unwrap(), &back));
    assert_eq!(plugins.status()[0].state, PluginState::Active);
}

/// A handler whose self-check computes until the second that is granted as `from`. Without the grant it
/// passes at once.
fn checks_the_clock() -> Vec<u8> {
    let world = "world test { import wasi:clocks/wall-clock@0.2.3; import wasi:config/store@0.2.0-rc.1;
        export tqhost:handler/handler@0.1.0; export tqhost:handler/lifecycle@0.1.0; }";
    let check = r#"(import "wasi:clocks/wall-clock@0.2.3" "now" (func $now (param i32)))
        (import "wasi:config/store@0.2.0-rc.1" "get" (func $get (param i32 i32 i32)))
        (data (i32.const 2048) "from")
        (func (export "tqhost:handler/lifecycle@0.1.0#self-check") (result i32)
            (local $at i32) (local $end i32) (local $from i64)
            (call $get (i32.const 2048) (i32.const 4) (i32.const 2064))
            (local.set $at (i32.load (i32.const 2072)))
            (local.set $end (i32.add (local.get $at) (i32.load (i32.const 2076))))
            (block $read (loop $digit
                (br_if $read (i32.ge_u (local.get $at) (local.get $end)))
                (local.set $from (i64.add (i64.mul (local.get $from) (i64.const 10))
                    (i64.sub (i64.load8_u (local.get $at)) (i64.const 48))))
                (local.set $at (i32.add (local.get $at) (i32.const 1)))
                (br $digit)))
            (loop $wait
                (call $now (i32.const 2080))
                (br_if $wait (i64.lt_u (i64.load (i32.const 2080)) (local.get $from))))
            (i32.const 2096))"#;
    embed(&module(check, DONE), world)
}

const LATE: &str = "self-check: timeout: it did not end within 100ms: it computed for most of that time";

const QUICK: Times = Times {
    check: Duration::from_millis(100),
    pauses: Pauses { first: Duration::from_millis(50), longest: Duration::from_millis(200) },
    patience: super::line::PATIENCE,
};

/// Lets that self-check pass from this number of seconds on.
fn from(later: u64) -> config::Plugin {
    let from = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + later;
    config::Plugin {
        config: BTreeMap::from([("from".to_owned(), config::Secret::new(from.to_string()))]),
        ..config::Plugin::default()
    }
}

#[tokio::test]
async fn a_self_check_that_was_late_is_tried_again_while_the_old_version_stays() {
    let folder = Folder::new();
    folder.put(&handler(ECHO));
    let plugins = folder.start_with(QUICK, from(4)).await;
    let mut active = plugins.subscribe("p");
    let old = active.borrow_and_update().clone().unwrap();
    folder.put(&checks_the_clock());
    let status = until(&plugins, |status| status.figures.failed_reloads.get() >= 2).await;
    assert_eq!((status.state, status.digest.as_ref()), (PluginState::Failed, Some(&old.digest)));
    assert!(status.retry_at_ms.is_some(), "{status:?}");
    assert_eq!(status.error.as_deref(), Some(LATE));

    let new = next(&mut active).await.unwrap();
    assert_eq!(result(&new).await, None);
    let status = plugins.status().remove(0);
    assert_eq!((status.state, status.retry_at_ms), (PluginState::Active, None));
    // The same failure again is one change.
    assert_eq!(changes(&plugins), [Milestone::Loaded, Milestone::SelfCheckFailed, Milestone::Loaded]);
    let failed = &status.history[1];
    assert_eq!((failed.digest.as_ref(), failed.reason.as_ref()), (Some(&new.digest), Some(&LATE.into())));
    assert!(failed.took_ms >= Some(100), "{failed:?}");
}

#[tokio::test]
async fn the_last_good_version_is_tried_again_when_a_start_was_too_busy_for_it() {
    let folder = Folder::new();
    let (plugins, mut active, good) = folder.start_on(&checks_the_clock()).await;
    folder.put(&marked("unreachable", 1));
    spoil(&next(&mut active).await.unwrap()).await;
    let noted = folder.root.path().join("cache/p.quarantine");
    until(&plugins, |_| noted.exists()).await;

    let again = folder.start_with(QUICK, from(4)).await;
    let status = again.status().remove(0);
    assert_eq!((status.state, status.digest.as_ref()), (PluginState::Quarantined, None));
    let why = format!("{} cannot run in its place (self-check: timeout: ", &good.digest[..12]);
    assert!(
        status.retry_at_ms.is_some() && status.error.as_ref().is_some_and(|error| error.contains(&why)),
        "{status:?}"
    );
    let status = until(&again, |status| status.digest.as_ref() == Some(&good.digest)).await;
    assert_eq!((status.state, status.retry_at_ms), (PluginState::Quarantined, None));
    assert!(
        status.error.is_some_and(|error| !error.contains(&why)),
        "nothing is said any more of what is over"
    );
}
