//! Leaves data where another task might find it, and returns what it finds itself.
//!
//! The guest takes 6 MiB more of memory (`grown` says whether it got them). It searches its whole memory for
//! `hunter2-` followed by digits. Then it fills the new memory with `hunter2-` and the number in field
//! `secret`, and also keeps this number in a global.
//!
//! It returns `found` (the numbers that are not its own), `kept` (the numbers in the global), and what the
//! host shows it: `environment`, `arguments`, `folder`, `stdin` (the number of bytes), `config`, eight bytes
//! of `random`, and the `seed` for hash tables.
#![cfg(target_family = "wasm")]

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Value, json};
use tqhost_handler::{Failure, Json, Task, config, handler};

wit_bindgen::generate!({
    path: ["../../wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
    world: "tqhost:testing/looker",
    generate_all,
});

use wasi::cli::{environment, stdin};
use wasi::random::{insecure_seed, random};

const MARK: &[u8] = b"hunter2-";
const PAGE: usize = 64 * 1024;
const PAGES: usize = 96;

thread_local! {
    static KEPT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    let own: u64 = task.number("secret")?;
    let first = core::arch::wasm32::memory_grow::<0>(PAGES);
    let mut found = BTreeSet::new();
    let end = core::arch::wasm32::memory_size::<0>() * PAGE;
    let mut at = 0;
    while at + MARK.len() + 8 < end {
        if MARK.iter().enumerate().all(|(n, byte)| peek(at + n) == *byte) {
            let digits: Vec<u8> =
                (at + MARK.len()..end).map(peek).take_while(u8::is_ascii_digit).take(18).collect();
            let number = digits.iter().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
            // A number that the end of the memory cuts off is not any task's number.
            let after = at + MARK.len() + digits.len();
            if !digits.is_empty() && number != own && after < end && peek(after) == b' ' {
                found.insert(number);
            }
        }
        at += 1;
    }
    if first != usize::MAX {
        let secret = format!("hunter2-{own} ");
        for (n, byte) in secret.bytes().cycle().take(PAGES * PAGE).enumerate() {
            poke(first * PAGE + n, byte);
        }
    }
    let kept = KEPT.with_borrow_mut(|kept| {
        kept.push(own);
        kept.clone()
    });
    let input = stdin::get_stdin();
    Ok(Json(json!({
        "grown": first != usize::MAX,
        "found": found,
        "kept": kept,
        "environment": environment::get_environment(),
        "arguments": environment::get_arguments(),
        "folder": environment::initial_cwd(),
        "stdin": input.blocking_read(16).map_or(0, |bytes| bytes.len()),
        "random": random::get_random_bytes(8),
        "seed": insecure_seed::insecure_seed(),
        "config": config::all()?,
    })))
}

fn peek(at: usize) -> u8 {
    // SAFETY: the address is below the end of the memory, and every bit pattern is a valid byte.
    unsafe { core::ptr::read_volatile(core::ptr::with_exposed_provenance(at)) }
}

fn poke(at: usize, byte: u8) {
    // SAFETY: the address is in the pages that this task has just taken, which the allocator does not know.
    unsafe { core::ptr::write_volatile(core::ptr::with_exposed_provenance_mut(at), byte) }
}

handler!(handle);
