//! One file that is watched: is it there, is it stable, what is in it.
//!
//! In: a path. Out: a [`Stamp`] that tells one state of the file from another, and its bytes, read whole or
//! not at all. Blocking, but never for long: a FIFO is not opened, a file that is too large is not read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The largest file that is read.
pub(crate) const MAX_BYTES: u64 = 64 << 20;

/// A file that nobody has touched for so long is stable at first sight. Far more than the coarseness of file
/// times.
const LONG_AGO: Duration = Duration::from_secs(1);

/// Tells one state of a file from another without reading it. The change time also tells those apart whose
/// modification time was set by hand, as `cp -p` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Found {
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

/// Reads the file if it is still as `stamp` says, before and after. None if it is not: somebody is at it.
pub(crate) fn read(path: &Path, stamp: Stamp) -> io::Result<Option<Vec<u8>>> {
    // Between the look and now it may have become a FIFO, whose opening waits for a writer.
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    if !stamp.holds(&file)? {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(stamp.bytes.min(MAX_BYTES)).unwrap_or(0));
    (&file).take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    let whole = bytes.len() as u64 == stamp.bytes && stamp.holds(&file)?;
    // The path may name another file by now.
    Ok((whole && look(path) == Found::File(stamp)).then_some(bytes))
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

    /// Whether the last change is so long ago that there is no need to wait and look again.
    pub(crate) fn is_old(self) -> bool {
        let Ok(now) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) else { return false };
        [self.modified, self.changed].into_iter().all(|(seconds, _)| {
            u64::try_from(seconds).is_ok_and(|seconds| Duration::from_secs(seconds) + LONG_AGO * 2 < now)
        })
    }

    fn holds(self, file: &File) -> io::Result<bool> {
        let meta = file.metadata()?;
        Ok(meta.is_file() && Stamp::of(&meta) == self)
    }
}
