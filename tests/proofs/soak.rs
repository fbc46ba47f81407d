//! A short soak test: the resources of host and Redis do not grow from round to round. `make soak` runs for
//! as long as you like, and also replaces handlers.

use crate::support::soak::{Soak, growth};

const ROUNDS: usize = 5;
const TASKS: usize = 2400;

#[test]
fn proof_42_memory_files_and_clients_stay_the_same_over_12_000_tasks() {
    let mut soak = Soak::start();
    let uses: Vec<_> = (0..ROUNDS).map(|_| soak.round(TASKS)).collect();
    let told: Vec<String> = uses.iter().map(ToString::to_string).collect();
    println!("{}", told.join("\n"));
    // The first round fills caches and pools.
    assert_eq!(growth(&uses[1], &uses[ROUNDS - 1]), Vec::<String>::new(), "{told:#?}");
    soak.stop();
}
