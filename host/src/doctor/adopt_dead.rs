//! Makes dead letters of what another program wrote at the place of a queue's dead letters: the items of a
//! list, and entries with other fields.
//!
//! In: a queue, and what the fields are. Out: how many were made. It may be interrupted and repeated.
//!
//! Not here: the form of one dead letter (`dead_format`).

use super::dead_format;
use crate::queue::dead::Pages;
use crate::queue::reply;
use crate::queue::script::{CONVERT, REPLACE};
use crate::queue::{Queue, QueueResult};

/// Items in one step, and the bytes at which it ends.
const PAGE: usize = 200;
const BYTES: usize = 1 << 20;
/// The most names and values that fit into one call in Lua.
const MAX_PARTS: usize = 7000;

impl Queue {
    /// Turns the items of a list into entries of a stream. Returns their number.
    pub(super) async fn convert_list(&self) -> QueueResult<u64> {
        let mut turned = 0;
        loop {
            let call = self.call(&CONVERT);
            let reply = self.link.script(&call.arg("limit", PAGE).arg("bytes", BYTES)).await?;
            let [done, left] = self.shaped("convert", reply::tuple(reply))?;
            turned += self.shaped("convert", reply::count(&done))?;
            if self.shaped("convert", reply::count(&left))? == 0 {
                return Ok(turned);
            }
        }
    }

    /// Converts foreign dead letters to the form of this host. Returns their number.
    pub(super) async fn convert_dead(
        &self,
        told: &[(String, String)],
        task_fields: &[String],
    ) -> QueueResult<u64> {
        let mut pages = Pages::new(Some(self.last_dead().await?));
        let mut converted = 0;
        while let Some(page) = pages.next(self).await? {
            let mut calls = Vec::new();
            for letter in page.into_iter().filter(crate::queue::DeadLetter::is_foreign) {
                let fields =
                    dead_format::convert(&self.rules.name, &letter.entry, &letter.raw, told, task_fields);
                // One with too many fields stays as it is.
                if fields.len() * 2 <= MAX_PARTS {
                    let call = self.call(&REPLACE);
                    calls.push(call.arg("entry", &letter.entry).fields(&fields));
                }
            }
            for reply in self.link.scripts("convert dead letters", &calls).await? {
                converted += self.shaped("convert dead letters", reply::count(&reply?))?;
            }
        }
        Ok(converted)
    }
}
