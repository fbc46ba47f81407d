//! `[blobs]`: the object store for the files of handlers, its credentials, and the limits of one call.
//!
//! In: a table. Out: a [`BlobSettings`]. Without `url` the store is a folder of `data_dir`.
//!
//! Not here: the values (`store`), the names of blobs and the store itself (`crate::blobs`).

use std::path::{Path, PathBuf};

use super::http::read_ca;
use super::keys;
use super::reader::{Item, Table};
use super::source::{Readers, maybe_secret, secret};
use super::store::{BlobSettings, BlobStore, Bucket, S3Key};
use super::units::show_text;

/// The longest name of a bucket, region or account.
const MAX_WORD: usize = 128;
/// Bytes of the part of the url that comes before a plugin's name in each key of the store.
const MAX_PREFIX: usize = 256;

/// The scheme of a url, and the keys that belong to it.
const SCHEMES: [(&str, &[&str]); 4] = [
    ("file", &[]),
    ("s3", &["endpoint", "region", "access_key_id", "secret_access_key", "session_token", "ca"]),
    ("gs", &["endpoint", "service_account", "ca"]),
    ("az", &["endpoint", "account", "account_key", "ca"]),
];

impl BlobSettings {
    /// The settings of a configuration without `[blobs]`.
    pub fn in_folder(data_dir: &Path) -> BlobSettings {
        read(&Table::absent(&keys::BLOBS), data_dir)
    }
}

pub(super) fn read(table: &Table, data_dir: &Path) -> BlobSettings {
    let store = match table.get("url") {
        Some(url) => read_store(table, &url),
        None => {
            check_keys(table, "file", "without a url");
            None
        }
    };
    BlobSettings {
        store: store.unwrap_or_else(|| BlobStore::Files(data_dir.join("blobs"))),
        max_blob: table.value_or_default("max_blob"),
        timeout: table.value_or_default("timeout"),
        ca: table.get("ca").and_then(|item| read_ca(&item)).unwrap_or_default(),
    }
}

fn read_store(table: &Table, url: &Item) -> Option<BlobStore> {
    const FORM: &str = "write \"file:FOLDER\", \"s3://BUCKET/PREFIX\", \"gs://BUCKET/PREFIX\" or \
                        \"az://CONTAINER/PREFIX\"";
    let text = url.string()?;
    let Some((scheme, rest)) = text.split_once(':') else {
        return url.refuse(format!("{} is no url of a store: {FORM}", show_text(text)));
    };
    if !SCHEMES.iter().any(|(known, _)| *known == scheme) {
        return url.refuse(format!("{} is no scheme of a store: {FORM}", show_text(scheme)));
    }
    check_keys(table, scheme, &format!("for a url of {scheme}"));
    if scheme == "file" {
        return read_folder(url, rest).map(BlobStore::Files);
    }
    let bucket =
        bucket(rest).map_err(|why| url.problem(format!("{} {why}: {FORM}", show_text(text)))).ok()?;
    let endpoint = table.checked("endpoint", check_endpoint);
    match scheme {
        "s3" => {
            let region = table.checked("region", check_word);
            Some(BlobStore::S3 { bucket, endpoint, region, key: read_key(table) })
        }
        "gs" => {
            let service_account = table.get("service_account").and_then(|item| {
                let key = secret(&item, Readers::Hosts)?;
                // A command leaves secrets unread and cannot check them. The text is a secret, so the message
                // shows no part of it.
                if key.is_loaded() && serde_json::from_str::<serde_json::Map<_, _>>(key.expose()).is_err() {
                    return item.refuse("is not the JSON of a service account's key");
                }
                Some(key)
            });
            Some(BlobStore::Google { bucket, endpoint, service_account })
        }
        _ => {
            let Some(account) = table.get("account") else {
                return url
                    .refuse(format!("needs {}, the name of the storage account", table.key_of("account")));
            };
            let account = account.checked(check_word)?;
            let account_key = table.get("account_key").and_then(|item| secret(&item, Readers::Hosts));
            Some(BlobStore::Azure { bucket, endpoint, account, account_key })
        }
    }
}

/// Reports each key that belongs to other kinds of stores.
fn check_keys(table: &Table, scheme: &str, whose: &str) {
    let schemes_of = |key: &str| -> Vec<&str> {
        SCHEMES.iter().filter(|(_, keys)| keys.contains(&key)).map(|(scheme, _)| *scheme).collect()
    };
    for key in keys::BLOBS.here() {
        let schemes = schemes_of(key);
        if !schemes.is_empty()
            && !schemes.contains(&scheme)
            && let Some(item) = table.get(key)
        {
            item.problem(format!("has no meaning {whose}: it belongs to a url of {}", schemes.join(", ")));
        }
    }
}

fn read_folder(url: &Item, rest: &str) -> Option<PathBuf> {
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => {
            return url.refuse("names a host: write \"file:FOLDER\" or \"file:///FOLDER\"");
        }
        None => rest,
    };
    if path.is_empty() || path.contains(['\0', '%', '?', '#']) {
        return url.refuse("has no plain path after file: write a path without %, ? and #");
    }
    Some(url.context().folder.join(path))
}

fn bucket(rest: &str) -> Result<Bucket, &'static str> {
    let rest = rest.strip_prefix("//").ok_or("has no // after the scheme")?;
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if name.contains('@') {
        return Err("has credentials in it, which have keys of their own");
    }
    check_word(name).map_err(|_| "has no valid bucket (1 to 128 letters, digits and ._-)")?;
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let is_part = |part: &str| {
        let plain = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        plain && !matches!(part, "" | "." | "..")
    };
    if prefix.len() > MAX_PREFIX || !(prefix.is_empty() || prefix.split('/').all(is_part)) {
        return Err("has no valid prefix (at most 256 letters, digits, ._- and single slashes)");
    }
    Ok(Bucket { name: name.to_owned(), prefix: prefix.to_owned() })
}

fn read_key(table: &Table) -> Option<S3Key> {
    let [id, key, token] =
        ["access_key_id", "secret_access_key", "session_token"].map(|name| table.get(name));
    let alone = |item: Item, missing: &str| {
        item.problem(format!("needs {}: write both, or none", table.key_of(missing)));
        None
    };
    match (id, key) {
        (Some(id), Some(key)) => {
            let read = |item: &Item| secret(item, Readers::Hosts);
            let session_token = token.as_ref().and_then(read);
            // The id of a key is no secret, but may be in the environment or a file, too.
            let id = maybe_secret(&id, Readers::Hosts)?;
            Some(S3Key { id, secret: read(&key)?, session_token })
        }
        (Some(id), None) => alone(id, "secret_access_key"),
        (None, Some(key)) => alone(key, "access_key_id"),
        (None, None) => token.and_then(|token| alone(token, "access_key_id")),
    }
}

fn check_word(text: &str) -> Result<(), String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if text.is_empty() || !plain || text.len() > MAX_WORD {
        return Err(format!("is not a name of 1 to {MAX_WORD} letters, digits and ._-"));
    }
    Ok(())
}

fn check_endpoint(text: &str) -> Result<(), String> {
    const FORM: &str = "write one like \"https://s3.example.com\" or \"http://127.0.0.1:9000\"";
    let url = url::Url::parse(text).map_err(|error| format!("is no url ({error}): {FORM}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(format!("is no url of a server: {FORM}"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!("has credentials in it, which have keys of their own: {FORM}"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(format!("has a query or a fragment: {FORM}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, parse_as_command, parse_in, refusals};
    use super::*;

    fn store(lines: &str) -> BlobStore {
        let config =
            parse(&format!("[queues.a]\n[blobs]\n{lines}\n")).unwrap_or_else(|error| panic!("{error}"));
        config.blobs.store
    }

    #[test]
    fn local_files_are_the_default() {
        let config = parse("data_dir = \"/var/lib/tqhost\"\n[queues.a]").expect("valid");
        let folder = Path::new("/var/lib/tqhost/blobs");
        assert_eq!(config.blobs, BlobSettings::in_folder(Path::new("/var/lib/tqhost")));
        assert_eq!(store("max_blob = \"1MiB\""), BlobStore::Files("/etc/tqhost/.tqhost/blobs".into()));
        assert_eq!(store("url = \"file:/var/lib/tqhost/blobs\""), BlobStore::Files(folder.into()));
        assert_eq!(store("url = \"file:///var/lib/tqhost/blobs\""), BlobStore::Files(folder.into()));
        assert_eq!(store("url = \"file:kept\""), BlobStore::Files("/etc/tqhost/kept".into()));
    }

    #[test]
    fn buckets_have_their_credentials() {
        let BlobStore::S3 { bucket, endpoint, region, key: Some(key) } = store(
            "url = \"s3://files/tq/prod/\"\nendpoint = \"http://127.0.0.1:9000\"\nregion = \"eu-central-1\"\n\
             access_key_id = \"AK\"\nsecret_access_key = { env = \"GOOD\" }",
        ) else {
            panic!("S3")
        };
        assert_eq!((bucket.name.as_str(), bucket.prefix.as_str()), ("files", "tq/prod"));
        assert_eq!(
            (endpoint.as_deref(), region.as_deref()),
            (Some("http://127.0.0.1:9000"), Some("eu-central-1"))
        );
        assert_eq!((key.id.expose(), key.secret.expose(), key.session_token), ("AK", "from-env", None));
        let BlobStore::Azure { bucket, account, account_key, .. } =
            store("url = \"az://files\"\naccount = \"team\"\naccount_key = \"a2V5\"")
        else {
            panic!("Azure")
        };
        assert_eq!((bucket.name.as_str(), bucket.prefix.as_str(), account.as_str()), ("files", "", "team"));
        assert_eq!(account_key.map(|key| key.expose().to_owned()).as_deref(), Some("a2V5"));
        assert!(matches!(store("url = \"gs://files\""), BlobStore::Google { service_account: None, .. }));
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("key.json"), "{\"type\": \"service_account\"}").expect("write");
        let text = "[queues.a]\n[blobs]\nurl = \"gs://files\"\nservice_account = { file = \"key.json\" }";
        let blobs = parse_in(text, folder.path()).expect("valid").blobs;
        assert!(matches!(blobs.store, BlobStore::Google { service_account: Some(_), .. }));
        // A command cannot check the form of what it has not read.
        let unread = text.replace("key.json", "missing");
        assert!(parse_as_command(&unread).is_ok() && parse(&unread).is_err());
    }

    #[test]
    fn bad_stores() {
        let texts = [
            "url = \"files\"",
            "url = \"ftp://host/x\"",
            "url = \"file://host/x\"",
            "url = \"file:\"",
            "url = \"file:a%2f\"",
            "url = \"s3:files\"",
            "url = \"s3://\"",
            "url = \"s3://a:b@files\"",
            "url = \"s3://files/a/../b\"",
            "url = \"s3://files/a//b\"",
            "url = \"s3://files\"\nregion = \"\"",
            "url = \"s3://files\"\nendpoint = \"host:9000\"",
            "url = \"s3://files\"\nendpoint = \"http://a:b@host\"",
            "url = \"s3://files\"\naccess_key_id = \"a\"",
            "url = \"s3://files\"\nsecret_access_key = \"a\"",
            "url = \"s3://files\"\nsession_token = \"a\"",
            "url = \"s3://files\"\naccount = \"a\"",
            "region = \"a\"",
            "url = \"file:x\"\nendpoint = \"http://h\"",
            "url = \"gs://files\"\nservice_account = \"hunter2\"",
            "url = \"gs://files\"\nservice_account = \"\"",
            "url = \"az://files\"",
            "max_blob = \"2GiB\"",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[blobs]\n{}\n", &texts));
    }
}
