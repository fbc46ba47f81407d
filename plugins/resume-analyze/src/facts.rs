//! The facts about a resume, before it is scored.
//!
//! Not here: how they are found (`analysis` and the files of each part), the score (`score`).

use serde::Serialize;

use crate::contact::Contact;
use crate::dates::{self, Month, Period};
use crate::education::Study;
use crate::sections::Sections;
use crate::skills::Skill;
use crate::text::Text;

/// Everything that the score depends on.
pub struct Facts<'a> {
    pub text: &'a Text,
    pub sections: &'a Sections,
    pub contact: &'a Contact,
    pub experience: &'a Experience,
    pub education: &'a [Study],
    pub skills: &'a [Skill],
    pub is_resume: bool,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Experience {
    pub periods: Vec<Period>,
    /// The sum of the periods. Overlaps count once.
    pub years_from_dates: Option<f64>,
    pub years_stated: Option<i32>,
}

impl Experience {
    pub fn new(mut periods: Vec<Period>, years_stated: Option<i32>, now: Month) -> Experience {
        periods.sort_by(|a, b| b.cmp(a));
        let months = dates::months_covered(&periods, now);
        Experience {
            years_from_dates: (months > 0).then(|| (f64::from(months) / 1.2).round() / 10.0),
            years_stated,
            periods,
        }
    }

    pub fn years(&self) -> Option<f64> {
        self.years_from_dates.or(self.years_stated.map(f64::from))
    }
}
