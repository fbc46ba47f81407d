//! Takes Redis replies apart. A reply of an unexpected shape is an error, never a panic.

use std::str::FromStr;

use redis::Value;

use super::codec::StreamEntry;

/// The reply has an unexpected shape.
#[derive(Debug)]
pub(crate) struct UnexpectedShape;

pub(crate) type Shaped<T> = Result<T, UnexpectedShape>;

/// The items of an array; nil is an empty one.
pub(crate) fn array(value: Value) -> Shaped<Vec<Value>> {
    match value {
        Value::Array(items) | Value::Set(items) => Ok(items),
        Value::Nil => Ok(Vec::new()),
        _ => Err(UnexpectedShape),
    }
}

/// Each item of an array, read.
pub(crate) fn each<T>(value: Value, read: impl FnMut(Value) -> Shaped<T>) -> Shaped<Vec<T>> {
    array(value)?.into_iter().map(read).collect()
}

/// Exactly `N` items.
pub(crate) fn tuple<const N: usize>(value: Value) -> Shaped<[Value; N]> {
    array(value)?.try_into().map_err(|_| UnexpectedShape)
}

pub(crate) fn int(value: &Value) -> Shaped<i64> {
    match value {
        Value::Int(n) => Ok(*n),
        Value::BulkString(bytes) => {
            std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).ok_or(UnexpectedShape)
        }
        _ => Err(UnexpectedShape),
    }
}

/// A count; nil and negative numbers are 0.
pub(crate) fn count(value: &Value) -> Shaped<u64> {
    match value {
        Value::Nil => Ok(0),
        value => Ok(int(value)?.max(0).unsigned_abs()),
    }
}

pub(crate) fn bytes(value: Value) -> Shaped<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        Value::Okay => Ok(b"OK".to_vec()),
        Value::Int(n) => Ok(n.to_string().into_bytes()),
        _ => Err(UnexpectedShape),
    }
}

/// Text from tqhost or Redis: ids, states. Bytes that are not UTF-8 are replaced.
pub(crate) fn text(value: Value) -> Shaped<String> {
    let lossy = |error: std::string::FromUtf8Error| String::from_utf8_lossy(error.as_bytes()).into_owned();
    bytes(value).map(|bytes| String::from_utf8(bytes).unwrap_or_else(lossy))
}

/// Bytes; none for nil.
pub(crate) fn optional_bytes(value: Value) -> Shaped<Option<Vec<u8>>> {
    if value == Value::Nil { Ok(None) } else { bytes(value).map(Some) }
}

/// Text; none for nil.
pub(crate) fn optional(value: Value) -> Shaped<Option<String>> {
    match value {
        Value::Nil => Ok(None),
        value => text(value).map(Some),
    }
}

/// A list of name, value, name, value….
pub(crate) fn pairs(value: Value) -> Shaped<Vec<(Vec<u8>, Vec<u8>)>> {
    if let Value::Map(items) = value {
        return items.into_iter().map(|(name, value)| Ok((bytes(name)?, bytes(value)?))).collect();
    }
    let mut items = array(value)?.into_iter();
    let mut out = Vec::with_capacity(items.len() / 2);
    while let (Some(name), Some(value)) = (items.next(), items.next()) {
        out.push((bytes(name)?, bytes(value)?));
    }
    Ok(out)
}

/// The value with this name among names and values.
pub(super) fn value_of<'p>(pairs: &'p [(Vec<u8>, Vec<u8>)], name: &str) -> Option<&'p [u8]> {
    pairs.iter().find(|(known, _)| known == name.as_bytes()).map(|(_, value)| value.as_slice())
}

/// The number with this name among names and values. None: it is not there, or the value is no number.
pub(super) fn number_of<N: FromStr>(pairs: &[(Vec<u8>, Vec<u8>)], name: &str) -> Option<N> {
    std::str::from_utf8(value_of(pairs, name)?).ok()?.parse().ok()
}

/// The milliseconds since the Unix epoch, in a reply of TIME.
pub(super) fn time_ms(reply: Value) -> Shaped<u64> {
    let [seconds, micros] = tuple(reply)?;
    Ok(count(&seconds)? * 1000 + count(&micros)? / 1000)
}

/// The entries of a reply of XRANGE or XREVRANGE.
pub(crate) fn stream_entries(reply: Value) -> Shaped<Vec<StreamEntry>> {
    let entry = |item| {
        let [id, fields] = tuple(item)?;
        Ok(StreamEntry { id: text(id)?, fields: pairs(fields)?, deliveries: 1 })
    };
    each(reply, entry)
}

/// Reads one of `meanings` for each subject of a call: a script gives its index in that list.
pub(crate) fn codes<T: Copy, const N: usize>(
    value: Value,
    meanings: [T; N],
    expected: usize,
) -> Shaped<Vec<T>> {
    let meaning = |code: &Value| {
        usize::try_from(int(code)?).ok().and_then(|code| meanings.get(code)).copied().ok_or(UnexpectedShape)
    };
    let found: Vec<T> = array(value)?.iter().map(meaning).collect::<Shaped<_>>()?;
    if found.len() == expected { Ok(found) } else { Err(UnexpectedShape) }
}
