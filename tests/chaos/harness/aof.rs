//! Reads Redis's append-only file: every write that took effect, in order, what a script wrote as one step.
//!
//! It is the one record that no host can forget to write: a command that changed nothing is not in it, one that did is. It has to be
//! a file that was never rewritten.

/// What Redis did in one step: the commands of a script or of MULTI, or a single one.
pub type Transaction<'f> = Vec<Vec<&'f [u8]>>;

/// The steps in the file, up to where it ends; a step that is cut off was not carried out.
pub fn transactions(file: &[u8]) -> impl Iterator<Item = Transaction<'_>> {
    let mut commands = Commands { rest: file };
    std::iter::from_fn(move || {
        let first = commands.next()?;
        if !first[0].eq_ignore_ascii_case(b"MULTI") {
            return Some(vec![first]);
        }
        let mut step = Vec::new();
        loop {
            let command = commands.next()?;
            if command[0].eq_ignore_ascii_case(b"EXEC") {
                return Some(step);
            }
            step.push(command);
        }
    })
}

struct Commands<'f> {
    rest: &'f [u8],
}

impl<'f> Iterator for Commands<'f> {
    type Item = Vec<&'f [u8]>;

    fn next(&mut self) -> Option<Vec<&'f [u8]>> {
        // Remarks, as times are.
        while self.rest.first() == Some(&b'#') {
            self.line()?;
        }
        let count = self.number(b'*')?;
        (0..count).map(|_| self.argument()).collect()
    }
}

impl<'f> Commands<'f> {
    fn line(&mut self) -> Option<&'f [u8]> {
        let end = self.rest.iter().position(|byte| *byte == b'\n')?;
        let line = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }

    fn number(&mut self, mark: u8) -> Option<usize> {
        let line = self.line()?;
        let digits = std::str::from_utf8(line.strip_prefix(&[mark])?).ok()?;
        digits.parse().ok()
    }

    fn argument(&mut self) -> Option<&'f [u8]> {
        let length = self.number(b'$')?;
        let argument = self.rest.get(..length)?;
        self.rest = self.rest.get(length + 2..)?;
        Some(argument)
    }
}
