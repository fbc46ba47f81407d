//! Reads requests: path, query and JSON body. What cannot be read is a [`ApiProblem`] that names the place.
//!
//! Not here: what the parts mean (the endpoints).

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use axum::Json;
use axum::body::HttpBody as _;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use url::form_urlencoded;

use super::state::{Api, MAX_BODY};
use crate::admin::problem::{ApiProblem, ProblemCode, invalid};
use crate::admin::tokens::Caller;
use crate::clock::parse_ms;

/// A body that is a JSON object.
pub(super) struct JsonBody<T>(pub T);

/// The parameters of the query.
pub(super) struct QueryOf<T>(pub T);

/// A request as endpoints see it.
pub(super) struct ApiCall<T> {
    pub api: Api,
    /// The parameters of the path.
    pub path: T,
    pub caller: Caller,
}

pub(crate) type ApiAnswer = Result<Response, ApiProblem>;

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiProblem;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiProblem> {
        match <Json<ObjectOf<T>> as FromRequest<S>>::from_request(request, state).await {
            Ok(Json(ObjectOf(body))) => Ok(JsonBody(body)),
            Err(rejection) => Err(bad_body(&rejection)),
        }
    }
}

/// A body that is a JSON object, or nothing.
pub(super) struct OptionalBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalBody<T> {
    type Rejection = ApiProblem;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiProblem> {
        // Clients that send no body often name a type all the same.
        if request.body().size_hint().exact() == Some(0) {
            return Ok(OptionalBody(T::default()));
        }
        JsonBody::from_request(request, state).await.map(|JsonBody(body)| OptionalBody(body))
    }
}

/// A value that is read from a JSON object. The structs that serde derives are read from a list, too, in the
/// order of their fields: a list that somebody sends by mistake would say `all`.
struct ObjectOf<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ObjectOf<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ObjectOf<T>, D::Error> {
        struct ObjectReader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectReader<T> {
            type Value = ObjectOf<T>;

            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("a JSON object")
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<ObjectOf<T>, M::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(ObjectOf)
            }
        }
        from.deserialize_map(ObjectReader(PhantomData))
    }
}

fn bad_body(rejection: &JsonRejection) -> ApiProblem {
    let (code, detail) = match rejection {
        JsonRejection::JsonDataError(error) => (ProblemCode::Invalid, error.body_text()),
        JsonRejection::JsonSyntaxError(error) => (ProblemCode::BadRequest, error.body_text()),
        JsonRejection::MissingJsonContentType(_) => (
            ProblemCode::UnsupportedMediaType,
            "the body is JSON: send it with content-type: application/json".to_owned(),
        ),
        other if other.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            (ProblemCode::TooLarge, format!("the body is larger than {} MiB", MAX_BODY >> 20))
        }
        other => (ProblemCode::BadRequest, other.body_text()),
    };
    ApiProblem::new(code, detail)
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryOf<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiProblem> {
        let bad = |rejection: QueryRejection| invalid(rejection.body_text());
        let uri = with_one_list(&parts.uri)?;
        let Query(query) = Query::try_from_uri(&uri).map_err(bad)?;
        Ok(QueryOf(query))
    }
}

/// The parameter that a query may have several times. serde takes each name once, so the values become one
/// JSON list, which [`of_query`] reads.
const REPEATED: &str = "where";

fn with_one_list(uri: &Uri) -> Result<Cow<'_, Uri>, ApiProblem> {
    let pairs = || form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let (list, others): (Vec<_>, Vec<_>) = pairs().partition(|(name, _)| name == REPEATED);
    if list.is_empty() {
        return Ok(Cow::Borrowed(uri));
    }
    let list: Vec<_> = list.into_iter().map(|(_, value)| value).collect();
    let mut query = form_urlencoded::Serializer::for_suffix("/?".to_owned(), 2);
    query.extend_pairs(others).append_pair(REPEATED, &serde_json::json!(list).to_string());
    let too_long = |_| invalid(format!("{REPEATED}: all of them are too long"));
    query.finish().parse().map(Cow::Owned).map_err(too_long)
}

/// Reads the list that stands in a query.
pub(super) fn of_query<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    serde_json::from_str(&String::deserialize(from)?).map_err(D::Error::custom)
}

impl<T: DeserializeOwned + Send> FromRequestParts<Api> for ApiCall<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiProblem> {
        let bad = |rejection: PathRejection| ApiProblem::new(ProblemCode::BadRequest, rejection.body_text());
        let Path(path) = Path::from_request_parts(parts, api).await.map_err(bad)?;
        let missing = || ApiProblem::new(ProblemCode::Internal, "the caller of the request is not known");
        let caller = parts.extensions.get().cloned().ok_or_else(missing)?;
        Ok(ApiCall { api: api.clone(), path, caller })
    }
}

/// A time in milliseconds since the Unix epoch: a number, or text with a number or an RFC 3339 time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct TimeMs(pub u64);

impl<'de> Deserialize<'de> for TimeMs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<TimeMs, D::Error> {
        struct TimeReader;
        impl Visitor<'_> for TimeReader {
            type Value = TimeMs;

            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("milliseconds since the Unix epoch, or a time like 2026-11-25T03:00:00Z")
            }

            fn visit_u64<E: Error>(self, ms: u64) -> Result<TimeMs, E> {
                Ok(TimeMs(ms))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<TimeMs, E> {
                let wrong = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
                parse_ms(text).map(TimeMs).ok_or_else(wrong)
            }
        }
        from.deserialize_any(TimeReader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_or_rfc_3339() {
        let read = |json: &str| serde_json::from_str(json).ok().map(|TimeMs(ms)| ms);
        assert_eq!(read("1700000000000"), Some(1_700_000_000_000));
        assert_eq!(read("\"1700000000000\""), Some(1_700_000_000_000));
        assert_eq!(read("\"2023-11-14T22:13:20Z\""), Some(1_700_000_000_000));
        for bad in ["-1", "\"yesterday\"", "\"1960-01-01T00:00:00Z\"", "true"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
