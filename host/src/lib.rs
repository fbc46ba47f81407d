//! tqhost: task queues on Redis Streams, with the business work in sandboxed WebAssembly components.
//!
//! The binary in `main.rs` is thin; everything it does is here. ARCHITECTURE.md describes the way of a task
//! through these modules. Nothing is public but the command line, and [`testing`].

#![warn(unreachable_pub, reason = "so that the compiler finds what nothing uses")]

mod admin;
mod announcer;
mod api;
mod app;
mod blobs;
mod builds;
mod chain;
mod cli;
mod clock;
mod config;
mod dashboard;
mod descriptors;
mod doctor;
mod effects;
mod embedded;
mod field;
mod file;
mod guarded;
mod https;
mod jobs;
mod logging;
mod mask;
mod metrics;
mod oci;
mod operations;
mod plugins;
mod queue;
mod reload;
mod sandbox;
mod secrets;
mod shutdown;
mod supervisor;
mod task;
mod telemetry;
mod tls;
mod watch;
mod worker;

pub use cli::main;

/// The parts of the host that the tests and benchmarks of this repository use without a process. They change
/// without notice.
#[doc(hidden)]
pub mod testing {
    pub mod config {
        pub use crate::config::rules::{Batch, Idempotency, Items, List, Rate, TargetQueue};
        pub use crate::config::{Backoff, Config, Missed, Plugin, QueueRules, Schedule, Warm, times};
    }
    pub mod doctor {
        pub use crate::doctor::mend;
    }
    pub mod effects {
        pub use crate::effects::{Effects, OutboxTask, StateChange};
    }
    pub mod queue {
        pub use crate::queue::control::PauseChange;
        pub use crate::queue::rate::Places;
        pub use crate::queue::redrive::DeadChoice;
        pub use crate::queue::rights::OF_HOSTS;
        pub use crate::queue::{
            Begun, Ending, EndingSubject, Enqueued, HeartbeatReport, Lease, Link, NewTask, NoEffects, Queue,
            Redis, SettleCall, Settled, Settlement, Start, Status, StreamEntry, TaskFilter, codec, schedule,
            script,
        };
    }
    pub mod sandbox {
        pub use crate::sandbox::{Attempt, Compiler, Handler, Sandbox, SandboxOptions};
    }
    pub mod task {
        pub use crate::task::{Field, Origin, Outcome, Progress, Task};
    }
    pub mod telemetry {
        pub use crate::telemetry::AttemptTrace;
    }
    pub mod worker {
        pub use crate::worker::settle;
    }
}
