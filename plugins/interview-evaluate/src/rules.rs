//! Judges one answer by rules that count.
//!
//! In: an [`Answer`]. Out: a score from 0 to 100, with the reason: 40 for length, 40 for the words that are
//! expected or that the question has, 20 for reasons, examples and figures. The rules do not understand the
//! answer, so they are labelled [`METHOD`]. The same answer always gets the same score.

use std::collections::BTreeSet;

use crate::{Answer, Judged};

/// The label of an evaluation by these rules.
pub const METHOD: &str = "rules";

/// The words of an answer that gets all points for its length.
const FULL_LENGTH: usize = 80;
const REASONS: [&str; 10] =
    ["because", "therefore", "so that", "for example", "such as", "因为", "所以", "例如", "比如", "首先"];

pub fn judge(answer: &Answer) -> Judged {
    let text = answer.answer.trim().to_lowercase();
    let words = words(&text);
    let length = 40 * words.len().min(FULL_LENGTH) / FULL_LENGTH;
    let expected: BTreeSet<String> = match &answer.expected[..] {
        [] => {
            self::words(&answer.question.to_lowercase()).into_iter().filter(|word| is_telling(word)).collect()
        }
        expected => expected.iter().map(|word| word.trim().to_lowercase()).collect(),
    };
    let found = expected.iter().filter(|word| text.contains(word.as_str())).count();
    let subject = if text.is_empty() { 0 } else { 40 * found / expected.len().max(1) };
    let reasons = REASONS.iter().filter(|reason| text.contains(*reason)).count();
    let has_figures = text.contains(|c: char| c.is_ascii_digit());
    let form = (8 * reasons.min(2)) + if has_figures { 4 } else { 0 };
    let feedback = if text.is_empty() {
        "There is no answer.".to_owned()
    } else {
        format!(
            "{} words; {found} of {} expected words; {reasons} reasons or examples{}.",
            words.len(),
            expected.len(),
            if has_figures { ", with figures" } else { "" }
        )
    };
    let score = u32::try_from(length + subject + form).unwrap_or(100);
    Judged { question: answer.question.clone(), score, feedback }
}

/// The words of a text. Two characters of Chinese are a word.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for part in text.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty()) {
        let chars: Vec<char> = part.chars().collect();
        if chars.iter().any(|c| ('\u{3040}'..='\u{9fff}').contains(c)) {
            words.extend(chars.chunks(2).map(String::from_iter));
        } else {
            words.push(part.to_owned());
        }
    }
    words
}

/// Whether a word of a question is about its subject.
fn is_telling(word: &str) -> bool {
    !word.is_ascii() || word.len() > 4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(question: &str, answer: &str, expected: &[&str]) -> u32 {
        let expected = expected.iter().map(|word| word.to_string()).collect();
        let judged = judge(&Answer { question: question.into(), answer: answer.into(), expected });
        assert!(judged.score <= 100, "{judged:?}");
        judged.score
    }

    #[test]
    fn a_better_answer_gets_more() {
        let question = "How does a consumer group work?";
        let short = "It shares work.";
        let good = "A consumer group shares entries of a stream, because each entry goes to one consumer. \
            For example, with 3 consumers each gets a third of the work.";
        assert_eq!(score(question, " ", &[]), 0);
        assert!(score(question, good, &[]) > score(question, short, &[]) + 30);
        assert_eq!(score(question, &format!("{good} such as this ").repeat(10), &[]), 100);
    }

    #[test]
    fn expected_words_count_in_any_language() {
        let answer = "消费者组记录每个消费者的位置，因为消息需要确认。";
        assert!(score("说说消费者组", answer, &["确认", "消费者"]) >= 40);
        assert!(score("说说消费者组", answer, &["索引"]) < 40);
    }
}
