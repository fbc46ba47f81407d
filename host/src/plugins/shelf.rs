//! The good versions of plugins, where all hosts find them: a host that never had one can go back to it.
//!
//! In: the file of a version that is good here. Out: its bytes, for hosts that have to go back to it. The
//! last few versions of each plugin are kept, in the object store of `[blobs]` if that is in the network, and
//! else in Redis. Only files are kept, never compiled code, which hosts could not check before they run it.
//!
//! **Trust.** Bytes count only if their SHA-256 is the one in the plugin's list. The list is in Redis, where
//! others may write. So an entry of the list has a mark: an HMAC under the token of `[admin]` (or the hashes
//! of the tokens with the role admin), which hosts have in common and producers do not have. Without a token,
//! a client that may write `tq:hosts:orders` decides what hosts go back to.
//! docs/decisions/0026-good-versions.md says why.
//!
//! Not here: which version is to be kept, and when (`keeper`); when a host goes back (`life`); the lists and
//! bytes in Redis (`queue`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::blobs::Blobs;
use crate::blobs::name::BlobName;
use crate::builds::{BuildNote, short};
use crate::clock::now_ms;
use crate::config::AccessRole;
use crate::config::model::Admin;
use crate::queue::orders::{self, GoodVersion, KeptAt, Orders};
use crate::queue::{Link, QueueError, hosts, versions};
use crate::secrets::{self, Bytes32};

/// How many versions of a plugin are kept.
const KEPT: usize = 4;
/// The largest file that is kept in Redis, and the bytes of all of them.
const MAX_BYTES: u64 = 32 << 20;
const MAX_ALL_BYTES: u64 = 128 << 20;
/// The bytes of all files in the object store.
const MAX_BLOB_BYTES: u64 = 1 << 30;
/// The folder of the files in the object store. No plugin's name begins with a dot.
const FOLDER: &str = ".versions";

/// Where good versions are kept. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Shelf(Option<Arc<Parts>>);

struct Parts {
    /// A connection for files alone, since they are large.
    link: Link,
    blobs: Blobs,
    key: Bytes32,
}

impl Shelf {
    pub(crate) fn new(link: Link, blobs: Blobs, admin: &Admin) -> Shelf {
        let of_admins = admin.tokens.iter().filter(|token| token.role == AccessRole::Admin);
        let mut of_admins: Vec<&str> = of_admins.map(|token| token.hash.expose()).collect();
        // Their order in the file does not matter.
        of_admins.sort_unstable();
        let token =
            admin.token.as_ref().map_or_else(|| of_admins.concat(), |token| token.expose().to_owned());
        let key = Sha256::digest(format!("tqhost good versions\0{token}")).into();
        Shelf(Some(Arc::new(Parts { link, blobs, key })))
    }

    /// The versions of a plugin whose mark is right, the newest first.
    pub(super) fn trusted(&self, plugin: &str, listed: &[GoodVersion]) -> Vec<GoodVersion> {
        let Some(parts) = &self.0 else { return Vec::new() };
        let (mut trusted, others): (Vec<_>, Vec<_>) =
            listed.iter().cloned().partition(|version| parts.is_marked(plugin, version));
        if let Some(other) = others.first() {
            let digest = short(&other.digest);
            tracing::warn!(
                plugin,
                digest,
                "a good version that another host kept is left out: its mark is not that of the token of \
                 [admin] here"
            );
        }
        trusted.sort_by_key(|version| std::cmp::Reverse(version.at));
        trusted
    }

    /// The file of a version.
    pub(super) async fn fetch(&self, version: &GoodVersion) -> Result<Vec<u8>, String> {
        let Some(parts) = &self.0 else { return Err("it is kept nowhere".to_owned()) };
        let found = match version.place {
            KeptAt::Redis => {
                let found = versions::get(&parts.link, &version.digest, version.bytes).await;
                found.map_err(in_words)?.ok_or("its file is not what was kept")?
            }
            KeptAt::Blobs => {
                let found = parts.blobs.find(FOLDER, &blob(&version.digest)?).await;
                let found = found.map_err(|error| error.to_string())?;
                if found.size != version.bytes {
                    return Err("its file in the object store has another size".to_owned());
                }
                found.read().await.map_err(|error| error.to_string())?
            }
        };
        if secrets::hex(&Sha256::digest(&found)) != version.digest {
            return Err("its file is not what was kept".to_owned());
        }
        Ok(found)
    }

    /// Keeps the file of a version that is good here.
    pub(super) async fn keep(
        &self,
        plugin: &str,
        digest: &str,
        bytes: Vec<u8>,
        build: BuildNote,
    ) -> Result<GoodVersion, String> {
        let Some(parts) = &self.0 else { return Err("there is no place for it".to_owned()) };
        let mut all = orders::list(&parts.link).await.map_err(in_words)?;
        let size = bytes.len() as u64;
        let (place, most) = match parts.blobs.is_shared() && parts.blobs.check_size(size).is_ok() {
            true => (KeptAt::Blobs, MAX_BLOB_BYTES),
            false => (KeptAt::Redis, MAX_ALL_BYTES),
        };
        if place == KeptAt::Redis && size > MAX_BYTES {
            return Err(format!("it has {size} bytes, and Redis keeps {MAX_BYTES}: set [blobs] to a bucket"));
        }
        if taken(&all, place) + size > most {
            parts.forget_unused(&mut all).await?;
        }
        if taken(&all, place) + size > most {
            return Err(format!("the versions of all plugins would have more than {most} bytes"));
        }
        let mark = parts.mark(plugin, digest, size);
        let version =
            GoodVersion { digest: digest.to_owned(), bytes: size, at: now_ms(), place, mark, build };
        if !all.good.values().flatten().any(|known| known.digest == digest && known.place == place) {
            parts.put(&version, bytes).await?;
        }
        let withdrawn = all.withdrawn.get(plugin);
        let listed = all.good.remove(plugin).unwrap_or_default();
        let mut list = vec![version.clone()];
        let (stays, mut goes): (Vec<_>, Vec<_>) = listed.into_iter().partition(|known| {
            let is_withdrawn = withdrawn.is_some_and(|withdrawn| withdrawn.contains_key(&known.digest));
            known.digest != digest && !is_withdrawn && parts.is_marked(plugin, known)
        });
        list.extend(stays);
        list.sort_by_key(|version| std::cmp::Reverse(version.at));
        goes.extend(list.split_off(list.len().min(KEPT)));
        orders::list_good(&parts.link, plugin, &list).await.map_err(in_words)?;
        goes.retain(|gone| gone.digest != digest);
        parts.remove(&goes, &all).await?;
        Ok(version)
    }
}

impl Parts {
    /// Removes the versions of plugins that no host uses.
    async fn forget_unused(&self, all: &mut Orders) -> Result<(), String> {
        let hosts = hosts::list(&self.link).await.map_err(in_words)?;
        let used: BTreeSet<&str> =
            hosts.iter().flat_map(|host| &host.plugins).map(|plugin| plugin.name.as_str()).collect();
        let unused: BTreeMap<String, Vec<GoodVersion>> =
            all.good.extract_if(.., |name, _| !used.contains(name.as_str())).collect();
        for (plugin, versions) in unused {
            orders::list_good(&self.link, &plugin, &[]).await.map_err(in_words)?;
            self.remove(&versions, all).await?;
        }
        Ok(())
    }

    async fn put(&self, version: &GoodVersion, bytes: Vec<u8>) -> Result<(), String> {
        match version.place {
            KeptAt::Blobs => {
                let (name, kind) = (blob(&version.digest)?, "application/wasm".to_owned());
                let put = self.blobs.put(FOLDER, &name, kind, bytes.into()).await;
                put.map(drop).map_err(|error| error.to_string())
            }
            KeptAt::Redis => {
                if versions::room(&self.link).await.is_some_and(|room| version.bytes > room) {
                    return Err("Redis would use more than half of its maxmemory".to_owned());
                }
                versions::put(&self.link, &version.digest, &bytes).await.map_err(in_words)
            }
        }
    }

    /// Removes the files of versions that no list has any more.
    async fn remove(&self, gone: &[GoodVersion], all: &Orders) -> Result<(), String> {
        for version in gone {
            if all.good.values().flatten().any(|known| known.digest == version.digest) {
                continue;
            }
            match version.place {
                KeptAt::Redis => versions::remove(&self.link, &version.digest).await.map_err(in_words)?,
                KeptAt::Blobs => {
                    let removed = self.blobs.remove(FOLDER, &blob(&version.digest)?).await;
                    removed.map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(())
    }

    fn is_marked(&self, plugin: &str, version: &GoodVersion) -> bool {
        self.mark(plugin, &version.digest, version.bytes).as_bytes().ct_eq(version.mark.as_bytes()).into()
    }

    fn mark(&self, plugin: &str, digest: &str, bytes: u64) -> String {
        secrets::hex(&secrets::hmac(&self.key, format!("{plugin}\0{digest}\0{bytes}").as_bytes()))
    }
}

/// The bytes of all files at this place.
fn taken(all: &Orders, place: KeptAt) -> u64 {
    let files = all.good.values().flatten().filter(|version| version.place == place);
    let files: BTreeMap<&str, u64> = files.map(|version| (version.digest.as_str(), version.bytes)).collect();
    files.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

fn in_words(error: QueueError) -> String {
    error.to_string()
}

fn blob(digest: &str) -> Result<BlobName, String> {
    BlobName::new(format!("{digest}.wasm"))
}
