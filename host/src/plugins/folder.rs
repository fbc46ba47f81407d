//! A folder that is ours alone, and stays the same one.
//!
//! In: a path. Out: a handle of the folder, through which its files are read and written. The host runs files
//! of the folder as machine code. A user who may write to a folder above can put another folder in its place
//! at any time. So the path is used once, and the owners of the folder and of each file are checked by the
//! handle.
//!
//! Not here: what the files hold (`cache`, `quarantine`).

use std::fs::{DirBuilder, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};

const OWNER_ALL: u32 = 0o700;
/// The rights of everybody else.
const OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);
const OTHERS_WRITE: Mode = Mode::WGRP.union(Mode::WOTH);
const TEMPORARY: &str = ".tmp";

#[derive(Debug)]
pub(super) struct OwnFolder {
    /// For messages.
    path: PathBuf,
    handle: OwnedFd,
}

/// A file of the folder.
#[derive(Debug)]
pub(super) struct FolderFile {
    pub name: String,
    pub bytes: u64,
    pub used: SystemTime,
}

impl OwnFolder {
    /// Makes the folder if need be. A folder of another user is refused. A folder that others could write to
    /// is emptied and closed to them, with a warning: files that they may have put there must not run.
    pub(super) fn open(path: &Path) -> io::Result<OwnFolder> {
        DirBuilder::new().recursive(true).mode(OWNER_ALL).create(path)?;
        // A link could lead to a place that others change.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|error| match error {
            rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => {
                io::Error::other("it is not a directory of its own (perhaps a symbolic link)")
            }
            error => error.into(),
        })?;
        let folder = OwnFolder { path: path.to_owned(), handle };
        folder.close_to_others()?;
        Ok(folder)
    }

    fn close_to_others(&self) -> io::Result<()> {
        let rights = || io::Result::Ok(rustix::fs::fstat(&self.handle)?);
        let before = rights()?;
        if before.st_uid != nix::unistd::geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
        if !mode(&before).intersects(OTHERS) {
            return Ok(());
        }
        rustix::fs::fchmod(&self.handle, Mode::RWXU)?;
        if mode(&rights()?).intersects(OTHERS) {
            return Err(io::Error::other("others can read or write it, and that cannot be changed"));
        }
        if mode(&before).intersects(OTHERS_WRITE) {
            tracing::warn!(
                folder = %self.path.display(),
                "other users could write to this folder: it is emptied and closed to them"
            );
            for entry in self.entries()? {
                self.remove(&entry.name)?;
            }
        }
        Ok(())
    }

    /// The path of the folder, for messages.
    pub(super) fn dir(&self) -> &Path {
        &self.path
    }

    /// The path of a file, for messages.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file for reading. It is an error if the file is not a regular one, or not ours.
    pub(super) fn file(&self, name: &str) -> io::Result<File> {
        // Opening a FIFO would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.handle, name, flags, Mode::empty()) {
            Err(rustix::io::Errno::LOOP) => return Err(not_ours("it is a symbolic link")),
            opened => opened?,
        };
        let found = rustix::fs::fstat(&file)?;
        if !is_file(&found) {
            return Err(not_ours("it is not a regular file"));
        }
        if found.st_uid != nix::unistd::geteuid().as_raw() {
            return Err(not_ours("it belongs to another user"));
        }
        Ok(file.into())
    }

    /// Writes a file as a whole, or not at all, since another host may read it.
    pub(super) fn write(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let mut new = self.create()?;
        parts.iter().try_for_each(|part| new.file.write_all(part))?;
        new.keep(name)
    }

    /// Begins a file that has no name yet.
    pub(super) fn create(&self) -> io::Result<UnnamedFile<'_>> {
        let temporary = format!("{}{TEMPORARY}", uuid::Uuid::now_v7());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.handle, &temporary, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(UnnamedFile { folder: self, temporary, file: file.into() })
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.handle, name, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// All regular files.
    pub(super) fn entries(&self) -> io::Result<Vec<FolderFile>> {
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.handle)? {
            let Ok(name) = entry?.file_name().to_str().map(str::to_owned) else { continue };
            // Another host may just have removed it.
            let Ok(found) = rustix::fs::statat(&self.handle, &*name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if is_file(&found) {
                let seconds = u64::try_from(found.st_mtime).unwrap_or(0);
                let nanos = u32::try_from(found.st_mtime_nsec).unwrap_or(0);
                let used = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
                entries.push(FolderFile { name, bytes: u64::try_from(found.st_size).unwrap_or(0), used });
            }
        }
        Ok(entries)
    }
}

/// A file that is being written. It is removed when this is dropped, unless it has got a name.
#[derive(Debug)]
pub(super) struct UnnamedFile<'a> {
    folder: &'a OwnFolder,
    temporary: String,
    pub(super) file: File,
}

impl UnnamedFile<'_> {
    /// Gives the file its name, in place of another one.
    pub(super) fn keep(self, name: &str) -> io::Result<()> {
        let handle = &self.folder.handle;
        Ok(rustix::fs::renameat(handle, &self.temporary, handle, name)?)
    }
}

impl Drop for UnnamedFile<'_> {
    fn drop(&mut self) {
        // A file that was kept has another name.
        let _ = self.folder.remove(&self.temporary);
    }
}

impl FolderFile {
    /// Whether a writer that crashed has left the file behind, or is writing it.
    pub(super) fn is_temporary(&self) -> bool {
        self.name.ends_with(TEMPORARY)
    }
}

fn not_ours(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn mode(found: &Stat) -> Mode {
    Mode::from_raw_mode(found.st_mode)
}

fn is_file(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::io::Read as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn text(folder: &OwnFolder, name: &str) -> io::Result<String> {
        let mut text = String::new();
        folder.file(name)?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn another_folder_in_its_place_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("cache");
        let folder = OwnFolder::open(&path).unwrap();
        folder.write("a", &[b"own", b" code"]).unwrap();
        fs::rename(&path, root.path().join("away")).unwrap();
        fs::create_dir(&path).unwrap();
        for name in ["a", "b"] {
            fs::write(path.join(name), "foreign").unwrap();
        }
        assert_eq!(text(&folder, "a").unwrap(), "own code");
        assert_eq!(text(&folder, "b").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(folder.entries().unwrap().len(), 1);
    }

    #[test]
    fn foreign_files_are_not_read() {
        let root = tempfile::tempdir().unwrap();
        let folder = OwnFolder::open(root.path()).unwrap();
        fs::write(root.path().join("a"), "code").unwrap();
        symlink(root.path().join("a"), root.path().join("link")).unwrap();
        fs::create_dir(root.path().join("folder")).unwrap();
        rustix::fs::mknodat(CWD, root.path().join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        for name in ["link", "folder", "fifo"] {
            assert_eq!(text(&folder, name).unwrap_err().kind(), io::ErrorKind::InvalidData, "{name}");
        }
        // Only root can give a file away.
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(root.path().join("a"), Some(65534), None).unwrap();
            assert!(text(&folder, "a").unwrap_err().to_string().contains("another user"));
            std::os::unix::fs::chown(root.path(), Some(65534), None).unwrap();
            assert!(OwnFolder::open(root.path()).unwrap_err().to_string().contains("another user"));
        }
    }

    #[test]
    fn a_folder_that_others_could_write_to_is_emptied_and_closed() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/cache");
        for (mode, stays) in [(0o755, true), (0o775, false), (0o777, false), (0o700, true)] {
            let folder = OwnFolder::open(&path).unwrap();
            folder.write("a", &[b"code"]).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let folder = OwnFolder::open(&path).unwrap();
            assert_eq!(text(&folder, "a").is_ok(), stays, "{mode:o}");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn a_link_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let (elsewhere, link) = (root.path().join("elsewhere"), root.path().join("cache"));
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, &link).unwrap();
        assert!(OwnFolder::open(&link).unwrap_err().to_string().contains("symbolic link"));
    }
}
