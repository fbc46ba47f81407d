//! Shows queues to an operator and changes them, for the command line, the HTTP API and the pages.
//!
//! In: the rules of queues and a connection to Redis. Out: views, whose names as JSON are stable; results of
//! changes; or an [`OperationError`], which every caller shows in its own way.
//!
//!     cli, api, dashboard ─▶ operations ─▶ queue ─▶ Redis
//!
//! Everything that can grow with a queue is read in bounded steps. A step returns a cursor with which the
//! next step goes on. Not here: words and tables for people (`cli`), HTTP (`api`).

pub(crate) mod alarms;
mod awaited;
mod cancel;
mod cancel_all;
mod cause;
mod change_before;
pub(crate) mod changes;
mod control;
mod cursor;
mod dead;
mod deed;
mod deploy;
mod enqueue;
mod error;
mod fields;
mod find;
mod groups;
pub(crate) mod history;
pub(crate) mod incidents;
mod job_step;
pub(crate) mod jobs;
mod json;
mod letters;
mod limits;
mod list;
mod many;
pub(crate) mod marks;
mod orders;
mod overview;
mod paging;
mod plugins;
mod queues;
mod retry;
mod sample;
mod scope;
mod task;
pub(crate) mod tree;
mod undo;
pub(crate) mod waits;

pub(crate) use crate::queue::repeat::patiently;
pub(crate) use awaited::AwaitedJob;
pub(crate) use cancel::{Cancelled, MOST_IDS, cancel};
pub(crate) use cancel_all::CANCELLABLE;
pub(crate) use control::{PausedView, pause, resume};
pub(crate) use dead::{DeadList, DeadView, dead_list};
pub(crate) use deed::act_on_named;
pub(crate) use deploy::{DeployWatch, HostVerdict, Taken, check_deployable};
pub(crate) use enqueue::{check_delay, enqueue, full, new_task};
pub(crate) use error::{OperationError, OperationResult};
pub(crate) use fields::{JsonMembers, fields_of_json, text_in};
pub(crate) use find::{find_everywhere, find_queue, rules};
pub(crate) use groups::{GroupBy, GroupKey, GroupKind, TaskGroup, TaskGrouping, TaskGroups, task_groups};
pub(crate) use job_step::{JobProgress, carry_on};
pub(crate) use json::{FieldView, result_json};
pub(crate) use letters::{FileLine, ImportedLetter, export, file_name, letter_lines, read_line};
pub(crate) use limits::{LimitView, clear_limits, limit, limits};
pub(crate) use list::{ListRequest, ListedTask, TaskList, list};
pub(crate) use many::ManyDone;
pub(crate) use orders::{
    OrderView, ReloadView, lift, lift_preview, reload, reload_preview, withdraw, withdraw_preview,
};
pub(crate) use overview::{LastOverview, Overview, SeenOverview, overview};
pub(crate) use plugins::{PluginView, known_builds, plugin_rows};
pub(crate) use queues::{
    NO_HOST, QueueOnHost, QueueView, ScheduleView, UncountedQueue, counted, queue_views, state_words,
};
pub(crate) use retry::{Retried, retry};
pub(crate) use sample::TaskSample;
pub(crate) use task::{TaskView, task_view, unknown_task};
pub(crate) use tree::BranchView;
pub(crate) use undo::{kept_of, undo, with_kept};
