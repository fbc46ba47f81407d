//! A server that speaks S3 for one test: moto, with a bucket and a key that may use a part of it.
//!
//! In: `TQHOST_S3_SERVER`, the folder of the programs that `scripts/from-pypi.sh` installs. Out: a running
//! server. It ends when it is dropped.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::support::Authority;

/// Makes the bucket `files`, and a user who may read and write below `tq/`. The server asks for rights after
/// the first four requests.
const SET_UP: &str = r#"
import json, sys, boto3
url, ca = sys.argv[1], sys.argv[2] or None
def client(service):
    return boto3.client(service, endpoint_url=url, verify=ca, region_name="us-east-1",
                        aws_access_key_id="admin", aws_secret_access_key="admin")
client("s3").create_bucket(Bucket="files")
iam = client("iam")
iam.create_user(UserName="tqhost")
key = iam.create_access_key(UserName="tqhost")["AccessKey"]
def allow(actions, resource):
    return {"Effect": "Allow", "Action": actions, "Resource": "arn:aws:s3:::" + resource}
statements = [allow(["s3:GetObject", "s3:PutObject"], "files/tq/*"), allow(["s3:ListBucket"], "files")]
policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
iam.put_user_policy(UserName="tqhost", PolicyName="blobs", PolicyDocument=policy)
print(key["AccessKeyId"], key["SecretAccessKey"])
"#;

/// Prints each object in two lines: its key and content type as JSON, and its bytes in hexadecimal. Or puts
/// one of the given size.
const LOOK: &str = r#"
import json, sys, boto3
url, ca, id, secret, *put = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=url, verify=ca or None, region_name="us-east-1",
                  aws_access_key_id=id, aws_secret_access_key=secret)
if put:
    s3.put_object(Bucket="files", Key=put[0], Body=bytes(int(put[1])))
else:
    for found in s3.list_objects_v2(Bucket="files").get("Contents", []):
        object = s3.get_object(Bucket="files", Key=found["Key"])
        print(json.dumps([found["Key"], object["ContentType"]]))
        print(object["Body"].read().hex())
"#;

pub struct S3Server {
    child: Child,
    pub url: String,
    /// The key that the host gets.
    pub id: String,
    pub secret: String,
    dir: tempfile::TempDir,
    has_tls: bool,
}

impl S3Server {
    /// Starts a server, with TLS if there is an authority for its certificate.
    pub fn start(authority: Option<&Authority>) -> S3Server {
        let dir = tempfile::tempdir().expect("a folder");
        if let Some(authority) = authority {
            let (certificate, key) = authority.certificate("127.0.0.1");
            for (name, text) in [("ca", &authority.pem()), ("certificate", &certificate), ("key", &key)] {
                std::fs::write(dir.path().join(name), text).expect("write a certificate");
            }
        }
        let has_tls = authority.is_some();
        let (child, url) = spawn(&dir, has_tls, 0);
        let mut server = S3Server { child, url, id: String::new(), secret: String::new(), dir, has_tls };
        server.set_up();
        server
    }

    /// Ends the server, which forgets everything.
    pub fn stop(&mut self) {
        self.child.kill().expect("end the server");
        self.child.wait().expect("the server ends");
    }

    /// Starts the server at the same address, with an empty bucket. The host's key stays the same.
    pub fn start_again(&mut self) {
        let port = self.url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        // Without rights: the key of the host is unknown to the new server.
        (self.child, _) = spawn_with(&self.dir, self.has_tls, port, "1000000");
        self.python(SET_UP, &[&self.url, &self.ca()]);
    }

    /// All objects of handlers: key, content type and bytes. Hosts keep good versions of plugins beside them.
    pub fn objects(&self) -> Vec<(String, String, Vec<u8>)> {
        let told = self.look(&[]);
        let lines: Vec<&str> = told.lines().collect();
        let byte = |pair: &[u8]| {
            let digits = std::str::from_utf8(pair).expect("digits");
            u8::from_str_radix(digits, 16).expect("hexadecimal")
        };
        let object = |pair: &[&str]| {
            let (key, kind): (String, String) = serde_json::from_str(pair[0]).expect("JSON");
            (key, kind, pair[1].as_bytes().chunks(2).map(byte).collect())
        };
        let is_of_handler = |(key, ..): &(String, String, Vec<u8>)| !key.contains("/.versions/");
        lines.chunks(2).map(object).filter(is_of_handler).collect()
    }

    /// Puts an object of the given number of zeros, as another program does.
    pub fn put(&self, key: &str, bytes: usize) {
        self.look(&[key, &bytes.to_string()]);
    }

    fn set_up(&mut self) {
        let told = self.python(SET_UP, &[&self.url, &self.ca()]);
        let (id, secret) = told.trim().split_once(' ').expect("a key");
        (self.id, self.secret) = (id.to_owned(), secret.to_owned());
    }

    fn look(&self, more: &[&str]) -> String {
        let ca = self.ca();
        self.python(LOOK, &[&[&*self.url, &*ca, &*self.id, &*self.secret], more].concat())
    }

    fn ca(&self) -> String {
        if self.has_tls { self.dir.path().join("ca").display().to_string() } else { String::new() }
    }

    fn python(&self, code: &str, args: &[&str]) -> String {
        let mut command = Command::new(programs().join("python"));
        let ran = command.args(["-c", code]).args(args).output().expect("run python");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("text")
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn programs() -> PathBuf {
    let folder = std::env::var_os("TQHOST_S3_SERVER");
    folder.expect("TQHOST_S3_SERVER is not set: run `make test-world`").into()
}

fn spawn(dir: &tempfile::TempDir, has_tls: bool, port: u16) -> (Child, String) {
    spawn_with(dir, has_tls, port, "4")
}

/// Starts the server, and gives its URL once it listens.
fn spawn_with(dir: &tempfile::TempDir, has_tls: bool, port: u16, without_rights: &str) -> (Child, String) {
    let mut command = Command::new(programs().join("moto_server"));
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    if has_tls {
        command.arg("-c").arg(dir.path().join("certificate")).arg("-k").arg(dir.path().join("key"));
    }
    command.env("INITIAL_NO_AUTH_ACTION_COUNT", without_rights).env("PYTHONUNBUFFERED", "1");
    let mut child = command.stderr(Stdio::piped()).spawn().expect("start moto_server");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let url = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let (_, url) = line.split_once("Running on ")?;
        Some(url.trim().to_owned())
    });
    // The server ends if nobody reads what it prints.
    std::thread::spawn(move || lines.for_each(drop));
    (child, url.expect("moto_server has ended"))
}
