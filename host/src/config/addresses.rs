//! Blocks of addresses, as `private_addresses` of an entry of `allowed_hosts` lists them.
//!
//! In: strings like `10.1.2.3` and `fd00::/8`. Out: [`IpNet`]s, which tell whether an address is in them.
//!
//! Not here: which entry they belong to (`hosts`), the values themselves (`allowed`).

use std::net::IpAddr;

use ipnet::IpNet;

use super::reader::Item;

pub(super) fn read(entries: &[Item]) -> Vec<IpNet> {
    entries.iter().filter_map(|entry| entry.parsed(parse)).collect()
}

/// Reads an address or a block. This does not use the parser of [`IpNet`]: it takes `010.0.0.0/8`, where
/// other programs read an octal number, and says less about what is wrong. The error continues a sentence
/// that begins with the text.
fn parse(text: &str) -> Result<IpNet, String> {
    let wrong = || {
        "is not an address or a block of them: write \"10.1.2.3\", \"10.0.0.0/8\" or \"fd00::/8\"".to_owned()
    };
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let block = match bits {
        None => IpNet::from(address),
        Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
            bits.parse().ok().and_then(|bits| IpNet::new(address, bits).ok()).ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    if block.network() == address {
        Ok(block)
    } else {
        Err(format!("has bits of its address set beyond the first {}", block.prefix_len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_contains_what_begins_with_its_bits() {
        let table = [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.2", false),
            ("0.0.0.0/0", "255.1.2.3", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe00::1", false),
            ("::/0", "fe80::1", true),
            ("10.0.0.0/8", "::ffff:10.0.0.1", false),
        ];
        for (block, address, contained) in table {
            let address: IpAddr = address.parse().expect(address);
            assert_eq!(parse(block).expect(block).contains(&address), contained, "{block} and {address}");
        }
    }
}
