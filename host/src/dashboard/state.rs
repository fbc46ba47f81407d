//! The parts that the pages share, and what each page is asked with.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::problem::PageProblem;
use super::session::{Sessions, Visitor};
use super::strays::StraysSeen;
use super::values::Values;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::api::Api;
use crate::operations::LastOverview;

/// The functions of the API, and who has logged in. Clones share them.
#[derive(Clone)]
pub(crate) struct Dashboard {
    pub(super) api: Api,
    pub(super) sessions: Arc<Sessions>,
    /// The last overview that this host saw.
    pub(super) last: LastOverview,
    pub(super) strays: StraysSeen,
}

impl Dashboard {
    pub(crate) fn new(api: Api, last: LastOverview) -> Dashboard {
        Dashboard { api, sessions: Arc::new(Sessions::new()), last, strays: StraysSeen::default() }
    }
}

/// A request for a page, or for a change.
pub(super) struct PageCall {
    pub dashboard: Dashboard,
    pub visitor: Visitor,
    pub values: Values,
}

impl FromRequestParts<Dashboard> for PageCall {
    type Rejection = PageProblem;

    async fn from_request_parts(parts: &mut Parts, dashboard: &Dashboard) -> Result<PageCall, PageProblem> {
        let Ok(values) = Values::from_request_parts(parts, dashboard).await;
        let visitor = parts.extensions.get::<Visitor>().cloned();
        // The guard lets nobody through without one.
        let missing = || ApiProblem::new(ProblemCode::Internal, "the visitor of the page is not known");
        Ok(PageCall { dashboard: dashboard.clone(), visitor: visitor.ok_or_else(missing)?, values })
    }
}
