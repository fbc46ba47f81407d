//! The signature of a request, as Standard Webhooks 1.0.0 describes it: HMAC-SHA256 of the id, the time and
//! the body, with a dot between them.
//!
//! In: the keys, the id, the time, the body. Out: the header `webhook-signature`, with one signature for each
//! key, so that a receiver that knows only one of them can check it.
//!
//! Not here: reading the keys (`settings`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The value of the header `webhook-signature`.
pub fn of(keys: &[Vec<u8>], id: &str, seconds: u64, body: &[u8]) -> String {
    let signatures = keys.iter().map(|key| format!("v1,{}", STANDARD.encode(mac(key, id, seconds, body))));
    signatures.collect::<Vec<_>>().join(" ")
}

#[allow(clippy::expect_used, reason = "HMAC takes a key of any length")]
fn mac(key: &[u8], id: &str, seconds: u64, body: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.update(format!("{id}.{seconds}.").as_bytes());
    mac.update(body);
    mac.finalize().into_bytes().to_vec()
}

/// The task's id as it can stand in a header. An id of visible ASCII characters stays the same, but for `.`,
/// which separates the parts of the signed text, and `%`. Those and all other bytes are percent-encoded.
pub fn header_id(id: &str) -> String {
    id.bytes().fold(String::with_capacity(id.len()), |mut encoded, byte| {
        if byte.is_ascii_graphic() && !b".%".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector that the reference libraries of Standard Webhooks share.
    #[test]
    fn the_signature_is_that_of_standard_webhooks() {
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        let first = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(
            of(std::slice::from_ref(&key), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body),
            first
        );
        let both = of(&[key, vec![7; 24]], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        let (old, new) = both.split_once(' ').unwrap();
        assert!(old == first && new.starts_with("v1,") && new != first, "{both}");
    }

    #[test]
    fn an_id_is_a_header_without_dots() {
        for (id, header) in [
            ("1700000000000-0", "1700000000000-0"),
            ("order:7/a", "order:7/a"),
            ("order.7 %", "order%2E7%20%25"),
            ("é\r\n", "%C3%A9%0D%0A"),
        ] {
            assert_eq!(header_id(id), header);
        }
    }
}
