//! Calls of scripts, as functions of the library that this host loads, or alone.
//!
//! In: a call of a script. Out: its reply. If a server does not know the script or the library, it is loaded
//! there. Only hosts load the library. If Redis refuses the library, each script is sent alone.
//!
//! Not here: what a call consists of (`script`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{Cmd, Value};

use super::error::{QueueError, QueueResult};
use super::link::{Link, Reply};
use super::node::Node;
use super::reply::{self, UnexpectedShape};
use super::script::{self, Form, Script, ScriptCall};
use super::servers::Redis;
use crate::chain::chain;

const LOAD_LIBRARY: &str = "load the library of functions";

impl Redis {
    /// From now on, scripts are called as functions of the library. Loads the library, and deletes the
    /// libraries of other versions; hosts of other versions load their own one again.
    pub(crate) async fn use_functions(&self) {
        self.has_library.store(true, Ordering::Relaxed);
        // Otherwise the first call loads it.
        for node in self.nodes.all().await.unwrap_or_default() {
            let link = self.link().at_node(node.clone());
            match link.load_library(&node, true).await {
                Ok(()) => {
                    if let Err(error) = link.delete_other_libraries().await {
                        tracing::debug!(error = chain(&error), "libraries of other versions stay in Redis");
                    }
                }
                Err(error) if will_pass(&error) => {}
                Err(error) => return self.do_without_library(&error),
            }
        }
    }

    /// Sends each script alone, because Redis refuses the library: it is full, or the user lacks the right.
    fn do_without_library(&self, error: &QueueError) {
        self.has_library.store(false, Ordering::Relaxed);
        let why = chain(error);
        tracing::info!(why, "Redis takes no library of functions, so scripts are sent alone");
    }
}

impl Link {
    /// How scripts are called.
    pub(super) fn form(&self) -> Form {
        let is_function = self.redis.has_library.load(Ordering::Relaxed);
        Form { is_function, in_cluster: self.is_cluster() }
    }

    /// Calls a script. If Redis does not know the script, loads it and calls it again.
    pub async fn script(&self, call: &ScriptCall) -> QueueResult<Value> {
        self.loaded(call.of.name, call.of, &call.command(self.form())).await
    }

    /// Like [`Link::script`], with a call that has been made into a command.
    pub(super) async fn script_command(&self, script: &Script, command: &Cmd) -> QueueResult<Value> {
        self.loaded(script.name, script, command).await
    }

    /// Sends a command that writes a few bytes, and works although the memory of Redis is full. The command's
    /// first argument is its only key.
    pub(super) async fn write(&self, what: &'static str, command: &Cmd) -> QueueResult<Value> {
        self.loaded(what, &script::WRITE, &script::write(command).command(self.form())).await
    }

    async fn loaded(&self, what: &'static str, script: &Script, call: &Cmd) -> QueueResult<Value> {
        let Reply { reply, by, loads } = self.routed(what, call).await;
        let Some(node) = by else { return reply };
        let alone = match &reply {
            Err(error) if error.is_no_function() => match self.load_library_again(&node, loads).await {
                Ok(()) => return self.command(what, call).await,
                Err(error) if will_pass(&error) => return Err(error),
                Err(error) => {
                    self.redis.do_without_library(&error);
                    &script.alone(call)
                }
            },
            Err(error) if error.is_denied_function() => {
                self.redis.do_without_library(error);
                &script.alone(call)
            }
            Err(error) if error.is_no_script() => call,
            _ => return reply,
        };
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(&script.source).to_owned();
        self.send(&node, "load a script", &load).await?;
        self.command(what, alone).await
    }

    /// Calls scripts in one go. Scripts that Redis has forgotten (restart, `SCRIPT FLUSH`) are loaded, and
    /// only their calls are repeated.
    pub async fn scripts(
        &self,
        what: &'static str,
        calls: &[ScriptCall],
    ) -> QueueResult<Vec<QueueResult<Value>>> {
        let form = self.form();
        let commands: Vec<Cmd> = calls.iter().map(|call| call.command(form)).collect();
        let mut replies = self.pipeline(what, &commands).await?;
        for (reply, call) in replies.iter_mut().zip(calls) {
            if reply.as_ref().is_err_and(QueueError::is_not_begun) {
                *reply = self.script(call).await;
            }
        }
        Ok(replies)
    }

    /// Loads the library because a server did not have it, unless another caller of this host has loaded it
    /// since then (`loads` has grown). All calls under way find it missing at the same time, and Redis takes
    /// some milliseconds to read it.
    async fn load_library_again(&self, node: &Arc<Node>, loads: u64) -> QueueResult {
        let _loading = node.loading.lock().await;
        if node.loads.load(Ordering::Acquire) == loads {
            self.load_library(node, false).await?;
            node.loads.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Loads the library. With `replaces`, a library that has its name already is replaced, since a name
    /// proves nothing. Otherwise that one stays, because another host has just loaded it.
    async fn load_library(&self, node: &Arc<Node>, replaces: bool) -> QueueResult {
        let mut load = redis::cmd("FUNCTION").arg("LOAD").clone();
        load.arg(replaces.then_some("REPLACE")).arg(&script::LIBRARY.text);
        match self.send(node, LOAD_LIBRARY, &load).await {
            Err(error) if !error.is_loaded() => Err(error),
            _ => Ok(()),
        }
    }

    async fn delete_other_libraries(&self) -> QueueResult {
        const WHAT: &str = "delete libraries of other versions";
        let mut list = redis::cmd("FUNCTION").arg("LIST").to_owned();
        list.arg("LIBRARYNAME").arg(format!("{}*", script::LIBRARIES));
        let names = self.read(WHAT, &list, library_names).await?;
        for name in names.iter().filter(|name| **name != script::LIBRARY.name) {
            self.command(WHAT, redis::cmd("FUNCTION").arg("DELETE").arg(name)).await?;
        }
        Ok(())
    }
}

/// Whether a server that refused the library is likely to take it later. A full server is not: the scripts
/// that let tasks out still work there when they are sent alone.
fn will_pass(error: &QueueError) -> bool {
    error.is_connection() || error.refuses_writes() || error.may_pass() && !error.is_out_of_memory()
}

/// The names of the libraries in a reply of FUNCTION LIST, which describes each one by names and values.
fn library_names(list: Value) -> reply::Shaped<Vec<String>> {
    let name_of = |library| -> reply::Shaped<String> {
        let mut about = reply::array(library)?.into_iter();
        while let (Some(name), Some(value)) = (about.next(), about.next()) {
            if reply::text(name)? == "library_name" {
                return reply::text(value);
            }
        }
        Err(UnexpectedShape)
    };
    reply::each(list, name_of)
}
