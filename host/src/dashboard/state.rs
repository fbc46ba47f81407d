//! The parts that the pages share.

use std::sync::Arc;

use super::session::Sessions;
use crate::api::Api;
use crate::operations::LastOverview;

/// The functions of the API, and who has logged in. Clones share them.
#[derive(Clone)]
pub(crate) struct Dashboard {
    pub(super) api: Api,
    pub(super) sessions: Arc<Sessions>,
    /// The last overview that this host saw.
    pub(super) last: LastOverview,
}

impl Dashboard {
    pub(crate) fn new(api: Api, last: LastOverview) -> Dashboard {
        Dashboard { api, sessions: Arc::new(Sessions::new()), last }
    }
}
