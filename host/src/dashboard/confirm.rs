//! The page that asks before a change: what it does, to how many, why, and the button.
//!
//! Not here: what is counted and done (`act`, `orders`).

use axum::response::Response;
use maud::{Markup, html};

use super::layout::{form_token, page, why_field};
use super::session::Visitor;
use super::text::data;
use crate::config::AccessRole;

/// A question, and the form that answers it with yes.
pub(super) struct Confirmation<'c> {
    /// The links above, and the one that leads back without a change.
    pub trail: Markup,
    pub back: &'c str,
    /// The change in words, and the queue or plugin.
    pub heading: String,
    pub name: &'c str,
    /// The effect, and to how many it applies.
    pub told: Markup,
    /// The role that it needs.
    pub role: AccessRole,
    /// The path of the form, its values, and the words of its button. None: there is nothing to do.
    pub form: Option<ConfirmForm>,
    /// The part below the form.
    pub more: Markup,
}

pub(super) struct ConfirmForm {
    pub action: String,
    /// Inputs that carry on what was counted or seen.
    pub hidden: Markup,
    /// Whether the reason has to be given, and the one that is proposed. None: nobody is asked for it.
    pub why: Option<(bool, String)>,
    pub button: String,
    pub is_dangerous: bool,
}

impl Confirmation<'_> {
    pub(super) fn page(&self, visitor: &Visitor) -> Response {
        let main = html! {
            p.trail { (self.trail) }
            h1 { (self.heading) " " (data(self.name)) }
            (self.told)
            @if !visitor.caller.may(self.role) {
                p { "This needs the role " (self.role.into_str()) "." }
            } @else if let Some(form) = &self.form {
                form.stacked method="post" action=(form.action) {
                    (form_token(visitor))
                    (form.hidden)
                    @if let Some((is_needed, proposed)) = &form.why {
                        (why_field("why", proposed, *is_needed))
                    }
                    button.danger[form.is_dangerous].primary[!form.is_dangerous] { (form.button) }
                }
            }
            (self.more)
            p { a href=(self.back) { "Back, without a change" } }
        };
        page(visitor, &format!("{} {}", self.heading, self.name), &main)
    }
}
