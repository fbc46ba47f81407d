//! Looks at one watched file, and reads it when it is stable.
//!
//! In: a path. Out: a [`Stamp`] that differs for each state of the file, and its bytes, read whole or not at
//! all. The calls block, but never for long: they never wait at a FIFO, and they read at most [`MAX_BYTES`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The largest file that is read. A plugin in Python with the packages of two model providers has 67 MiB.
pub(crate) const MAX_BYTES: u64 = 96 << 20;
/// How long a file must stay the same before it is read.
pub(crate) const SETTLE: Duration = Duration::from_millis(100);

/// A file that has not changed for this long is stable at the first look. It is far more than the resolution
/// of file times.
const LONG_AGO: Duration = Duration::from_secs(2);

/// Identifies one state of a file without reading it. The change time shows a change even where the
/// modification time was set by hand, as `cp -p` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The result of a look at a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Found {
    #[default]
    Missing,
    /// A regular file, perhaps behind symbolic links.
    File(Stamp),
    /// A directory, FIFO, socket or device; or it cannot be looked at.
    Other(&'static str),
}

/// Looks at a path, following links.
pub(crate) fn look(path: &Path) -> Found {
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() => Found::File(Stamp::of(&meta)),
        Ok(meta) if meta.is_dir() => Found::Other("it is a directory, not a file"),
        Ok(_) => Found::Other("it is not a regular file"),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Found::Missing
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Found::Other("no permission to look at it")
        }
        Err(_) => Found::Other("it cannot be looked at"),
    }
}

/// Reads the file if it has this `stamp` before and after the reading. Returns `None` if somebody changed it.
pub(crate) fn read(path: &Path, stamp: Stamp) -> io::Result<Option<Vec<u8>>> {
    // The path may name a FIFO since the last look, and opening a FIFO would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    if !stamp.holds(&file)? {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(stamp.bytes.min(MAX_BYTES)).unwrap_or(0));
    (&file).take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    let whole = bytes.len() as u64 == stamp.bytes && stamp.holds(&file)?;
    // The path may name another file since it was opened.
    Ok((whole && look(path) == Found::File(stamp)).then_some(bytes))
}

impl Found {
    /// The size of the file; 0 where there is none.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Found::File(stamp) => stamp.bytes,
            Found::Missing | Found::Other(_) => 0,
        }
    }
}

impl Stamp {
    fn of(meta: &fs::Metadata) -> Stamp {
        Stamp {
            device: meta.dev(),
            inode: meta.ino(),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// A stamp without a file.
    #[cfg(test)]
    pub(crate) fn numbered(number: u64) -> Stamp {
        Stamp { device: 0, inode: number, bytes: 1, modified: (0, 0), changed: (0, 0) }
    }

    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Whether the last change is more than [`LONG_AGO`] ago, so that a second look is not needed.
    pub(crate) fn is_old(self) -> bool {
        let Ok(now) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) else { return false };
        [self.modified, self.changed].into_iter().all(|(seconds, _)| {
            u64::try_from(seconds).is_ok_and(|seconds| Duration::from_secs(seconds) + LONG_AGO < now)
        })
    }

    fn holds(self, file: &File) -> io::Result<bool> {
        let meta = file.metadata()?;
        Ok(meta.is_file() && Stamp::of(&meta) == self)
    }
}
