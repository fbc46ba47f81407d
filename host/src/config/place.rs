//! A place in a task: a field, or a value in the JSON that a field holds.
//!
//! Not here: how the configuration names a place (`value`), the value of a task at a place (`queue::value`,
//! `queue::condition`).

use crate::field::HOST_FIELDS;
use crate::mask::FieldMask;

/// The deepest place in a JSON value.
const MAX_DEPTH: usize = 32;

/// A place in a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueAt {
    pub field: String,
    /// The place in the JSON of the field. None: the value is the whole field, as it is.
    pub pointer: Option<Pointer>,
}

/// A JSON pointer (RFC 6901): the names and indexes that lead from the whole value to a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer(pub Vec<String>);

impl Pointer {
    pub(crate) fn parse(text: &str) -> Result<Pointer, String> {
        if text.is_empty() {
            return Ok(Pointer(Vec::new()));
        }
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!("is not a JSON pointer: write \"/{text}\", with a / before each name"));
        };
        let tokens: Vec<&str> = rest.split('/').collect();
        if tokens.len() > MAX_DEPTH {
            return Err(format!("leads deeper than {MAX_DEPTH} levels"));
        }
        let unescaped = |token: &&str| {
            let is_escape = |part: &str| part.starts_with(['0', '1']);
            let is_good = token.split('~').skip(1).all(is_escape);
            is_good.then(|| token.replace("~1", "/").replace("~0", "~"))
        };
        tokens.iter().map(unescaped).collect::<Option<_>>().map(Pointer).ok_or_else(|| {
            "is not a JSON pointer: in a name, ~ is written ~0, and / is written ~1".to_owned()
        })
    }
}

/// A place as an operator writes it: the name of a field, or with slashes a place in the JSON of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPlace {
    pub name: String,
    /// The field and the place in it, of a name with slashes.
    pub in_json: Option<(String, Pointer)>,
}

impl FieldPlace {
    pub(crate) fn parse(name: &str) -> Result<FieldPlace, String> {
        let (field, pointer) = match name.find('/') {
            Some(at) => (&name[..at], Some(&name[at..])),
            None => (name, None),
        };
        if field.is_empty() {
            return Err("it names no field".to_owned());
        }
        if field.starts_with(HOST_FIELDS) {
            return Err(format!("{field} is a field of the host: write one of the producer"));
        }
        let pointer = pointer.map(Pointer::parse).transpose();
        let pointer = pointer.map_err(|why| format!("what follows {field} {why}"))?;
        let in_json = pointer.map(|pointer| (field.to_owned(), pointer));
        Ok(FieldPlace { name: name.to_owned(), in_json })
    }

    /// The name in it whose values are hidden, if there is one.
    pub(crate) fn hidden_by(&self, mask: &FieldMask) -> Option<&str> {
        let in_json =
            self.in_json.iter().flat_map(|(field, Pointer(tokens))| [field].into_iter().chain(tokens));
        let mut names = [&self.name].into_iter().chain(in_json).map(String::as_str);
        names.find(|name| mask.hides(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers() {
        let tokens = |text: &str| Pointer::parse(text).expect(text).0;
        assert_eq!(tokens(""), Vec::<String>::new());
        assert_eq!(tokens("/"), [""]);
        assert_eq!(tokens("/a/0/b~1c~0d~01"), ["a", "0", "b/c~d~1"]);
        for text in ["a", "a/b", "/~", "/~2", "/a~", &"/x".repeat(33)] {
            assert!(Pointer::parse(text).is_err(), "{text}");
        }
    }
}
