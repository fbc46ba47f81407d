//! Tests of what a guest says about services that are down.

use std::time::Duration;

use super::run;
use super::testing::{attempt, embed, module, outcome};
use crate::task::{FailureKind, Outcome};

#[tokio::test]
async fn a_retry_after_a_service_was_reported_down_is_told_apart() {
    let reporting = |index: u8, retries: bool, given: &str| {
        let imports = r#"(import "tqhost:extensions/outage@0.1.0" "unavailable"
            (func $unavailable (param i32 i32 i64)))"#;
        let end = if retries {
            r#"(i32.store8 (i32.const 16) (i32.const 1)) (i32.store8 (i32.const 24) (i32.const 0))
               (i32.store (i32.const 32) (i32.const 512)) (i32.store (i32.const 36) (i32.const 0))
               (i64.store8 (i32.const 40) (i64.const 1)) (i64.store (i32.const 48) (i64.const 1500))"#
        } else {
            ""
        };
        let body = format!("(call $unavailable (i32.const {index}) {given}) {end} (i32.const 16)");
        let world = "world test { import tqhost:extensions/outage@0.1.0;
            export tqhost:handler/handler@0.1.0; }";
        embed(&module(imports, &body), world)
    };
    let (none, some) = ("(i32.const 0) (i64.const 0)", "(i32.const 1) (i64.const 7000)");
    for (given, after) in [(none, 1500), (some, 7000)] {
        let ended = outcome(&run(&reporting(0, true, given), attempt()).await);
        let after = Some(Duration::from_millis(after));
        assert_eq!(ended, Outcome::Unavailable { message: String::new(), after });
    }
    let ended = outcome(&run(&reporting(0, false, none), attempt()).await);
    assert!(matches!(ended, Outcome::Completed { .. }), "{ended:?}");
    let ended = outcome(&run(&reporting(1, true, none), attempt()).await);
    let Outcome::Failed { kind: FailureKind::Trap, message } = ended else { panic!("{ended:?}") };
    insta::assert_snapshot!(message, @"`unavailable(1)`: the call has 1 tasks, and the first one is 0");
}
