//! JSON-RPC 2.0, one message a line: what is spoken on the Unix socket.
//!
//! Pure: bytes of a line in, text of a line out. Batches are absent: nobody sends them here.

use serde_json::{Map, Value, json};

use crate::error::{Detail, Error, ErrorCode};

/// The line is not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The line is JSON but no request.
pub const INVALID_REQUEST: i64 = -32600;
/// There is no such method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The method does not take these parameters.
pub const INVALID_PARAMS: i64 = -32602;
/// The method failed; `data.code` says how.
pub const FAILED: i64 = -32000;

/// What somebody asks.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What the answer carries; none where no answer is wanted.
    pub id: Option<Value>,
    /// The method.
    pub method: String,
    /// Its parameters: an empty object where none were given.
    pub params: Value,
}

/// Reads the request on one line (without its end).
///
/// # Errors
/// The line to answer with, where it is none.
pub fn parse(line: &[u8]) -> Result<Request, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| {
        // serde_json's words never repeat the input.
        failure(&Value::Null, PARSE_ERROR, &format!("parse error: {error}"), None)
    })?;
    let Value::Object(mut object) = value else {
        let why = if value.is_array() { "batches are not supported" } else { "expected an object" };
        return Err(failure(&Value::Null, INVALID_REQUEST, &format!("invalid request: {why}"), None));
    };
    let id = object.remove("id");
    let refuse = |why: &str| {
        let known = id.as_ref().filter(|id| is_id(id)).unwrap_or(&Value::Null);
        Err(failure(known, INVALID_REQUEST, &format!("invalid request: {why}"), None))
    };
    if id.as_ref().is_some_and(|id| !is_id(id)) {
        return refuse("id is neither text nor a number");
    }
    if object.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return refuse("jsonrpc is not \"2.0\"");
    }
    let Some(Value::String(method)) = object.remove("method") else {
        return refuse("method is missing or no text");
    };
    let params = match object.remove("params") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(params @ (Value::Object(_) | Value::Array(_))) => params,
        Some(_) => return refuse("params is neither an object nor a list"),
    };
    Ok(Request { id, method, params })
}

fn is_id(id: &Value) -> bool {
    id.is_string() || id.is_number() || id.is_null()
}

/// The line that asks.
pub fn request(id: u64, method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

/// The line that answers `id`.
pub fn answer(id: &Value, outcome: Result<Value, Error>) -> String {
    match outcome {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string(),
        Err(error) => {
            let code = match error.code {
                ErrorCode::InvalidRequest => INVALID_PARAMS,
                ErrorCode::UnknownMethod => METHOD_NOT_FOUND,
                _ => FAILED,
            };
            let mut data = json!({ "code": error.code.name() });
            if let Some(Detail::RetryAfter(after)) = &error.detail {
                data["retry_after_ms"] = json!(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
            }
            if let Some(Detail::Budget(met)) = &error.detail {
                data["budget"] = json!({
                    "name": met.name.name(), "used": met.used, "limit": met.limit,
                    "resets_ms": met.resets.map(|at| at.as_millis()),
                });
            }
            failure(id, code, &error.message, Some(data))
        }
    }
}

/// The line that says why `id` (null where it is not known) has no result.
pub fn failure(id: &Value, code: i64, message: &str, data: Option<Value>) -> String {
    let mut error = json!({ "code": code, "message": message });
    if let Some(data) = data {
        error["data"] = data;
    }
    json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string()
}

/// Reads an answer back.
///
/// # Errors
/// What the other side says failed, or `Internal` where the line is no answer.
pub fn read_answer(line: &[u8]) -> Result<Value, Error> {
    let broken = || ErrorCode::Internal.error("the daemon's answer is not JSON-RPC: is it a clawmux?");
    let mut value: Value = serde_json::from_slice(line).map_err(|_| broken())?;
    if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
        let code = error.pointer("/data/code").and_then(Value::as_str).and_then(ErrorCode::from_name);
        let message = error.get("message").and_then(Value::as_str).unwrap_or("no reason was given");
        let by_number = match error.get("code").and_then(Value::as_i64) {
            Some(METHOD_NOT_FOUND) => ErrorCode::UnknownMethod,
            Some(INVALID_PARAMS | INVALID_REQUEST | PARSE_ERROR) => ErrorCode::InvalidRequest,
            _ => ErrorCode::Internal,
        };
        return Err(code.unwrap_or(by_number).error(message));
    }
    value.as_object_mut().and_then(|object| object.remove("result")).ok_or_else(broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(line: &str) -> (Value, i64) {
        let refused: Value = serde_json::from_str(&parse(line.as_bytes()).unwrap_err()).unwrap();
        (refused["id"].clone(), refused["error"]["code"].as_i64().unwrap())
    }

    #[test]
    fn requests_are_read() {
        let request = parse(br#"{"jsonrpc":"2.0","id":"a","method":"m","params":null,"extra":1}"#).unwrap();
        assert_eq!((request.id, request.params), (Some(json!("a")), json!({})));
        assert_eq!(parse(br#"{"jsonrpc":"2.0","method":"m"}"#).unwrap().id, None);
    }

    #[test]
    fn what_is_no_request_is_told_why() {
        assert_eq!(code("{"), (Value::Null, PARSE_ERROR));
        assert_eq!(code("\u{0}"), (Value::Null, PARSE_ERROR));
        assert_eq!(code("[]"), (Value::Null, INVALID_REQUEST));
        assert_eq!(code("3"), (Value::Null, INVALID_REQUEST));
        assert_eq!(code(r#"{"id":7,"method":"m"}"#), (json!(7), INVALID_REQUEST));
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":7}"#), (json!(7), INVALID_REQUEST));
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#), (Value::Null, INVALID_REQUEST));
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":7,"method":"m","params":1}"#), (json!(7), INVALID_REQUEST));
        assert_eq!(code(&"[".repeat(100_000)), (Value::Null, PARSE_ERROR), "deep nesting is refused");
    }

    #[test]
    fn answers_read_back() {
        let id = json!(1);
        assert_eq!(read_answer(answer(&id, Ok(json!({"a": 1}))).as_bytes()).unwrap(), json!({"a": 1}));
        assert_eq!(read_answer(answer(&id, Ok(Value::Null)).as_bytes()).unwrap(), Value::Null);
        for error_code in ErrorCode::ALL {
            let error = error_code.error("why");
            assert_eq!(read_answer(answer(&id, Err(error.clone())).as_bytes()).unwrap_err(), error);
        }
        assert_eq!(read_answer(b"HTTP/1.1 400").unwrap_err().code, ErrorCode::Internal);
        assert_eq!(read_answer(b"{}").unwrap_err().code, ErrorCode::Internal);
    }

    proptest! {
        #[test]
        fn no_line_panics(line in any::<Vec<u8>>()) {
            if let Err(refused) = parse(&line) {
                prop_assert!(!refused.contains('\n') && read_answer(refused.as_bytes()).is_err());
            }
            let _ = read_answer(&line);
        }
    }
}
