//! A registry of container images for one test: Debian's docker-registry, with its storage in a folder.
//!
//! In: whether it asks for a password. Out: a running registry. It ends when it is dropped.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::support::eventually;

/// The user `ci` with the password `secret`, hashed by bcrypt.
const USERS: &str = "ci:$2y$05$e.4ztrOfj5G.9xUXOUpGfeVbFHeZwZrP0TmKyFjCvScg8WjtnMppi\n";
/// The credentials of this user, as `docker login` writes them.
const LOGIN: &str = "Y2k6c2VjcmV0";

pub struct RegistryServer {
    child: Child,
    pub address: String,
    dir: tempfile::TempDir,
}

impl RegistryServer {
    pub fn start() -> RegistryServer {
        RegistryServer::start_with("")
    }

    /// It lets in only the user of [`RegistryServer::login`].
    pub fn start_private() -> RegistryServer {
        RegistryServer::start_with("auth:\n  htpasswd:\n    realm: test\n    path: DIR/users\n")
    }

    fn start_with(more: &str) -> RegistryServer {
        let dir = tempfile::tempdir().expect("a folder");
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let address = format!("127.0.0.1:{port}");
        let text = format!(
            "version: 0.1\nlog:\n  accesslog:\n    disabled: true\n  level: error\n\
             storage:\n  filesystem:\n    rootdirectory: DIR/storage\nhttp:\n  addr: {address}\n{more}"
        );
        let text = text.replace("DIR", &dir.path().display().to_string());
        fs::write(dir.path().join("config.yml"), text).expect("write the configuration");
        fs::write(dir.path().join("users"), USERS).expect("write the users");
        let child = spawn(&dir);
        let server = RegistryServer { child, address, dir };
        server.until_ready();
        server
    }

    /// Ends the registry. Its storage stays.
    pub fn stop(&mut self) {
        self.child.kill().expect("end the registry");
        self.child.wait().expect("the registry ends");
    }

    pub fn start_again(&mut self) {
        self.child = spawn(&self.dir);
        self.until_ready();
    }

    fn until_ready(&self) {
        eventually("the registry listens", || TcpStream::connect(&self.address).ok());
    }

    /// The reference of the plugin with this tag.
    pub fn reference(&self, tag: &str) -> String {
        format!("oci://{}/team/p:{tag}", self.address)
    }

    /// A file of docker with the credentials for this registry.
    pub fn login(&self) -> String {
        format!(r#"{{"auths": {{"{}": {{"auth": "{LOGIN}"}}}}}}"#, self.address)
    }

    /// The file of the storage with this content.
    pub fn blob(&self, digest: &str) -> PathBuf {
        let blobs = self.dir.path().join("storage/docker/registry/v2/blobs/sha256");
        blobs.join(&digest[..2]).join(digest).join("data")
    }
}

impl Drop for RegistryServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(dir: &tempfile::TempDir) -> Child {
    let mut command = Command::new("docker-registry");
    command.arg("serve").arg(dir.path().join("config.yml")).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("start docker-registry: run `make test-world`")
}
