//! Blocks of addresses, as `private_addresses` of an entry of `allowed_hosts` lists them.
//!
//! In: strings like `10.1.2.3` and `fd00::/8`. Out: [`Block`]s, which tell whether an address is in them.
//!
//! Not here: which entry they belong to (`hosts`), which addresses are public (the sandbox).

use std::fmt;
use std::net::IpAddr;

use super::reader::Item;
use super::units::show_text;

/// One address, or all addresses that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    address: IpAddr,
    bits: u32,
}

impl Block {
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(block), IpAddr::V4(address)) => {
                (block.to_bits() ^ address.to_bits()).leading_zeros() >= self.bits
            }
            (IpAddr::V6(block), IpAddr::V6(address)) => {
                (block.to_bits() ^ address.to_bits()).leading_zeros() >= self.bits
            }
            _ => false,
        }
    }

    /// The error continues a sentence that begins with the text.
    pub(crate) fn parse(text: &str) -> Result<Block, String> {
        let wrong = || {
            "is not an address or a block of them: write \"10.1.2.3\", \"10.0.0.0/8\" or \"fd00::/8\""
                .to_owned()
        };
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) if bits.is_empty() || !bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(wrong());
            }
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?,
        };
        let rest = match address {
            IpAddr::V4(address) => address.to_bits().checked_shl(bits).unwrap_or(0) != 0,
            IpAddr::V6(address) => address.to_bits().checked_shl(bits).unwrap_or(0) != 0,
        };
        if rest {
            Err(format!("has bits of its address set beyond the first {bits}"))
        } else {
            Ok(Block { address, bits })
        }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

pub(super) fn read(item: &Item) -> Vec<Block> {
    let block = |entry: Item| {
        let text = entry.string()?;
        Block::parse(text).map_err(|why| entry.problem(format!("{} {why}", show_text(text)))).ok()
    };
    item.list().unwrap_or_default().into_iter().filter_map(block).collect()
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
            let address = address.parse().expect(address);
            assert_eq!(
                Block::parse(block).expect(block).contains(address),
                contained,
                "{block} and {address}"
            );
        }
    }
}
