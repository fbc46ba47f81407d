//! Blocks of addresses, as `private_addresses` of an entry of `allowed_hosts` lists them.
//!
//! In: strings like `10.1.2.3` and `fd00::/8`. Out: [`Block`]s, which tell whether an address is in them.
//!
//! Not here: which entry they belong to (`hosts`), the values themselves (`allowed`).

use super::allowed::Block;
use super::reader::Item;
use super::units::show_text;

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
