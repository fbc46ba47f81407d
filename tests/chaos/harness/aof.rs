//! Reads Redis's append-only file.
//!
//! In: the bytes of a file that was never rewritten. Out: every write that took effect, in order; the writes
//! of a script are one step. The file contains exactly the commands that changed something, whatever hosts
//! say. A copy of a hash is given as the HSET that it amounts to. Not here: what they mean (`history`).

/// The writes of one step: the commands of a script or of MULTI, or a single command.
pub type Transaction<'f> = Vec<Vec<&'f [u8]>>;

/// The steps in the file. A truncated step at the end does not count.
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
            step.push(copied(&step, &command).unwrap_or(command));
        }
    })
}

/// The HSET of what `command` copies, if it copies a hash that an earlier write of the step has made.
fn copied<'f>(step: &Transaction<'f>, command: &[&'f [u8]]) -> Option<Vec<&'f [u8]>> {
    let &[b"COPY", source, copy] = command else { return None };
    let made = |write: &&Vec<&[u8]>| write[0].eq_ignore_ascii_case(b"HSET") && write[1] == source;
    let fields = step.iter().filter(made).flat_map(|write| &write[2..]);
    Some([&b"HSET"[..], copy].iter().chain(fields).copied().collect())
}

struct Commands<'f> {
    rest: &'f [u8],
}

impl<'f> Iterator for Commands<'f> {
    type Item = Vec<&'f [u8]>;

    fn next(&mut self) -> Option<Vec<&'f [u8]>> {
        // Annotations, such as times.
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
