//! Credentials for registries, as docker keeps them.
//!
//! In: a registry's name. Out: its user and password or its token, from the file `config.json` below
//! `DOCKER_CONFIG` or `~/.docker`, or from the helper program that this file names. The crate
//! `docker_credential` reads both. Not here: what is done with them (`auth`).

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use tokio::sync::Semaphore;

use super::call::OciError;

/// The most bytes of the file that are read.
const MAX_BYTES: u64 = 1 << 20;
/// How long a helper program may take.
const HELPER: Duration = Duration::from_secs(30);
/// How long a call waits for the helper programs of calls before it.
const TURN_TIMEOUT: Duration = Duration::from_secs(150);

/// Only one helper runs at a time, so that a helper that does not end is not started again and again.
static TURN: Semaphore = Semaphore::const_new(1);

pub(super) enum Credential {
    Password(String, String),
    /// An identity token, which is exchanged for a token of the registry.
    Token(String),
}

/// The path of docker's configuration. None: neither `DOCKER_CONFIG` nor `HOME` is set.
pub(super) fn file() -> Option<PathBuf> {
    let own = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let folder = own.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".docker")))?;
    Some(folder.join("config.json"))
}

/// The credentials of docker for this registry. None: docker has none.
pub(super) async fn credential(registry: &str) -> Result<Option<Credential>, OciError> {
    let Some(path) = file() else { return Ok(None) };
    let shown = path.display().to_string();
    let registry = registry.to_owned();
    let Ok(turn) = tokio::time::timeout(TURN_TIMEOUT, TURN.acquire()).await else {
        return Err(OciError::passing(format!("{shown}: its helper program is busy")));
    };
    let looking = tokio::task::spawn_blocking(move || {
        // The turn ends with the helper program, even if this call does not wait for it.
        let _turn = turn;
        look(&path, &registry)
    });
    match tokio::time::timeout(HELPER, looking).await {
        Ok(Ok(found)) => found.map_err(|why| OciError::lasting(format!("{shown}: {why}"))),
        Ok(Err(_)) => Err(OciError::lasting(format!("{shown} cannot be read"))),
        Err(_) => Err(OciError::passing(format!("{shown}: its helper program does not end"))),
    }
}

/// Reads the file at `path`, and runs the helper program that it names. It may take as long as the helper.
fn look(path: &Path, registry: &str) -> Result<Option<Credential>, String> {
    let file = match File::open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        opened => opened.map_err(|error| error.to_string())?,
    };
    match get_credential_from_reader(file.take(MAX_BYTES), registry) {
        Ok(DockerCredential::UsernamePassword(user, password)) => {
            Ok(Some(Credential::Password(user, password)))
        }
        Ok(DockerCredential::IdentityToken(token)) => Ok(Some(Credential::Token(token))),
        Err(CredentialRetrievalError::NoCredentialConfigured) => Ok(None),
        // Helpers of docker say this if they have no credentials for a registry.
        Err(CredentialRetrievalError::HelperFailure { stdout, .. })
            if stdout.contains("credentials not found") =>
        {
            Ok(None)
        }
        // The output of a helper may hold a secret.
        Err(CredentialRetrievalError::HelperFailure { helper, .. }) => Err(format!("{helper} has failed")),
        Err(CredentialRetrievalError::ConfigReadError) => Err("it is not a configuration of docker".into()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_found_in_the_file_of_docker() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.json");
        let found = |text: Option<&str>, registry: &str| {
            if let Some(text) = text {
                std::fs::write(&path, text).expect("write");
            }
            look(&path, registry).map(|found| match found? {
                Credential::Password(user, password) => Some(format!("{user} {password}")),
                Credential::Token(token) => Some(token),
            })
        };
        assert_eq!(found(None, "r.example"), Ok(None), "there is no file");
        // `u:p:q` in base64.
        let auths = r#"{"auths": {"r.example": {"auth": "dTpwOnE="}, "t.example": {"identitytoken": "t"}}}"#;
        assert_eq!(found(Some(auths), "r.example"), Ok(Some("u p:q".into())));
        assert_eq!(found(None, "t.example"), Ok(Some("t".into())));
        assert_eq!(found(None, "other.example"), Ok(None));
        assert_eq!(found(Some("{"), "r.example"), Err("it is not a configuration of docker".into()));
        let helper = r#"{"credHelpers": {"r.example": "is-not-there"}}"#;
        assert!(found(Some(helper), "r.example").expect_err("no helper").contains("helper"));
    }
}
