//! Finds how much memory this process may use: that of the machine, or the limit of its control group.
//!
//! In: /proc and /sys of Linux. Out: bytes, or None if they cannot be found.
//!
//! Not here: how much of it handlers may have (`budget`).

use std::fs;
use std::path::Path;

/// The smallest memory limit of this process.
pub(super) fn memory() -> Option<u64> {
    memory_under(Path::new("/"))
}

fn memory_under(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| {
        // A line is `number:controllers:path`; version 2 has one with no controllers.
        let (_, rest) = line.split_once(':')?;
        let (folder, file, path) = match rest.split_once(':')? {
            ("", path) => ("sys/fs/cgroup", "memory.max", path),
            (controllers, path) if controllers.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes", path)
            }
            _ => return None,
        };
        // The limits of parent groups apply as well. In a container, the path may be the machine's, and only
        // its top is visible.
        let groups = Path::new(path.trim_start_matches('/')).ancestors();
        groups
            .filter_map(|group| {
                fs::read_to_string(root.join(folder).join(group).join(file)).ok()?.trim().parse().ok()
            })
            .min()
    });
    limits.chain(total(&fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default())).min()
}

/// Reads the total from the text of /proc/meminfo.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 10 kB\n");

    type Files = &'static [(&'static str, &'static str)];

    #[test]
    fn the_smallest_limit_counts() {
        let table: &[(Files, Option<u64>)] = &[
            (&[], None),
            (&[MEMINFO], Some(1_024_000)),
            (
                &[MEMINFO, ("proc/self/cgroup", "0::/a/b\n"), ("sys/fs/cgroup/a/b/memory.max", "max\n")],
                Some(1_024_000),
            ),
            (
                &[MEMINFO, ("proc/self/cgroup", "0::/a/b\n"), ("sys/fs/cgroup/a/memory.max", "4096\n")],
                Some(4096),
            ),
            (
                &[MEMINFO, ("proc/self/cgroup", "0::/elsewhere\n"), ("sys/fs/cgroup/memory.max", "8192\n")],
                Some(8192),
            ),
            (
                &[
                    MEMINFO,
                    ("proc/self/cgroup", "5:cpu:/x\n4:cpuset,memory:/x\n"),
                    ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "512\n"),
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ],
                Some(512),
            ),
            (
                &[MEMINFO, ("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", "99999999999\n")],
                Some(1_024_000),
            ),
        ];
        for (files, expected) in table {
            let root = tempfile::tempdir().expect("a folder");
            for (path, text) in *files {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
                fs::write(path, text).expect("it can be written");
            }
            assert_eq!(memory_under(root.path()), *expected, "{files:?}");
        }
    }
}
