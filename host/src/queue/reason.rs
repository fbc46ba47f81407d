//! The reasons why a task is dead.
//!
//! Not here: the decision that a task is dead (`worker::settle`), its dead letter (`settle`, `dead`).

use strum::{IntoStaticStr, VariantArray, VariantNames};

use crate::task::SettledAs;

/// Why a task is dead: the values of `tq-reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum Reason {
    Rejected,
    RetriesExhausted,
    DeferralsExhausted,
    Crashed,
    Malformed,
    FlowFailed,
    Expired,
}

impl From<Reason> for SettledAs {
    fn from(reason: Reason) -> SettledAs {
        match reason {
            Reason::Rejected => SettledAs::Rejected,
            Reason::RetriesExhausted => SettledAs::RetriesExhausted,
            Reason::DeferralsExhausted => SettledAs::DeferralsExhausted,
            Reason::Crashed => SettledAs::Crashed,
            Reason::Malformed => SettledAs::Malformed,
            Reason::FlowFailed => SettledAs::FlowFailed,
            Reason::Expired => SettledAs::Expired,
        }
    }
}
