//! Makes a vector of a text without a model, by hashing its words.
//!
//! In: a text, and the number of dimensions. Out: a vector of the length 1, the same on every machine. Two
//! texts that share words are near to each other. The method does not know what words mean, so it is a
//! stand-in for tests, demos, and search by words, and its vectors are labelled [`METHOD`].
//!
//! Not here: vectors of a model (`embed`).

use std::collections::HashMap;

/// The label of vectors that this method has made.
pub const METHOD: &str = "hashed-words";

/// Words count by themselves and in pairs. Of a text without spaces, such as Chinese, characters do.
pub fn vector(text: &str, dimensions: usize) -> Vec<f32> {
    let mut counts: HashMap<u64, f32> = HashMap::new();
    let mut last: Option<String> = None;
    for term in terms(text) {
        if let Some(last) = &last {
            *counts.entry(hash(&format!("{last} {term}"))).or_default() += 0.5;
        }
        *counts.entry(hash(&term)).or_default() += 1.0;
        last = Some(term);
    }
    // The order of additions changes the last bits of a sum, so it must not depend on the map.
    let mut counts: Vec<(u64, f32)> = counts.into_iter().collect();
    counts.sort_by_key(|(hash, _)| *hash);
    let mut vector = vec![0.0_f32; dimensions];
    for (hash, count) in counts {
        // Each hash has a sign, so that two terms at one place cancel out instead of looking alike.
        let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
        vector[(hash % dimensions as u64) as usize] += sign * count.sqrt();
    }
    let length = vector.iter().map(|weight| weight * weight).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|weight| *weight /= length);
    } else {
        // A text without words, such as a line of dots, still needs a vector that can be compared.
        vector[0] = 1.0;
    }
    vector
}

/// The words in lower case. Each character of Chinese and Japanese is a word.
fn terms(text: &str) -> impl Iterator<Item = String> {
    let mut terms = Vec::new();
    let mut word = String::new();
    for c in text.chars() {
        let is_word = c.is_alphanumeric();
        if (!is_word || is_wide(c)) && !word.is_empty() {
            terms.push(std::mem::take(&mut word));
        }
        if is_wide(c) {
            terms.push(c.to_string());
        } else if is_word {
            word.extend(c.to_lowercase());
        }
    }
    terms.extend((!word.is_empty()).then_some(word));
    terms.into_iter()
}

/// A character of a script that is written without spaces.
fn is_wide(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// FNV-1a with 64 bits, and a last step that spreads the differences of short texts over all bits.
pub fn hash(text: &str) -> u64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn likeness(a: &str, b: &str) -> f32 {
        vector(a, 512).iter().zip(vector(b, 512)).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn texts_with_the_same_words_are_near() {
        for (text, near, far) in [
            ("Redis streams keep entries.", "The streams of REDIS keep entries", "Roses need sun and water."),
            ("消费者组记录位置。", "消费者组的位置", "玫瑰需要阳光和水。"),
        ] {
            assert!((likeness(text, text) - 1.0).abs() < 1e-5);
            assert!(likeness(text, near) > likeness(text, far) + 0.3, "{text}");
        }
    }

    #[test]
    fn a_vector_has_the_length_1_and_is_the_same_each_time() {
        for text in ["one two", "。。。", "", &"long text ".repeat(500)] {
            let found = vector(text, 64);
            assert_eq!(found.len(), 64);
            assert!((found.iter().map(|weight| weight * weight).sum::<f32>() - 1.0).abs() < 1e-5, "{text}");
            assert_eq!(found, vector(text, 64));
        }
    }
}
