//! Random bytes, and marks that only the holder of a key can make.
//!
//! Not here: values of the configuration that must not be printed (`config::secret`).

use sha2::{Digest as _, Sha256};

/// A key, a mark (HMAC-SHA256) or a digest (SHA-256).
pub(crate) type Bytes32 = [u8; 32];

/// 256 random bits of the operating system.
pub(crate) fn random() -> Bytes32 {
    let mut bytes = [0; 32];
    let filled = rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes);
    // Without random bytes every secret could be guessed.
    assert!(filled.is_ok(), "the operating system gives no random bytes");
    bytes
}

/// HMAC-SHA256 (RFC 2104).
pub(crate) fn hmac(key: &Bytes32, text: &[u8]) -> Bytes32 {
    let padded = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().into()
}

/// The bytes in hexadecimal, in small letters.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that [`hex`] wrote; none where the text is something else.
pub(crate) fn from_hex(text: &str) -> Option<Bytes32> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_an_hmac() {
        // RFC 4231, test case 2, with its key filled up by zeros.
        let mut key = [0; 32];
        key[..4].copy_from_slice(b"Jefe");
        let mark = hex(&hmac(&key, b"what do ya want for nothing?"));
        assert_eq!(mark, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn bytes_and_their_text() {
        let bytes = random();
        assert_ne!(bytes, random());
        assert_eq!(from_hex(&hex(&bytes)), Some(bytes));
        for bad in ["", &hex(&bytes)[1..], &"g".repeat(64), &"é".repeat(32), &"A".repeat(64)] {
            assert_eq!(from_hex(bad), None, "{bad}");
        }
    }
}
