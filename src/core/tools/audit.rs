//! What is kept of every tool call that was made: who, what, with which grants, and what came of it. Inputs
//! and results are in the log of their session; here they are digests, which tell whether that was changed.
//!
//! Records are chained: each one's hash is over the one before it, so that none can be changed, left out or
//! put in between without all that follow it.

use std::time::Duration;

use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::hex::hex;
use crate::ids::{CallId, PluginName, RunId, SessionKey};
use crate::time::Timestamp;
use crate::tools::call::ToolCall;

/// What a call used, as far as that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallUsage {
    /// The fuel it burnt; none where it was cut off, or is no plugin's.
    pub fuel: Option<u64>,
    /// The grants it made use of, as they were written.
    pub grants: Vec<String>,
}

/// A tool call that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRecord {
    /// When it ended.
    pub at: Timestamp,
    /// The session, by which its owner and agent are known too.
    pub session: SessionKey,
    /// The run.
    pub run: RunId,
    /// The call.
    pub call: CallId,
    /// What was called.
    pub tool: PluginName,
    /// Of its input.
    pub input: [u8; 32],
    /// What it used.
    pub usage: CallUsage,
    /// How long it took, waiting for its turn included.
    pub took: Duration,
    /// Whether it failed.
    pub is_error: bool,
    /// Of its result.
    pub result: [u8; 32],
}

/// A hash of the chain. The first record follows the one of all zeros.
pub type ChainHash = [u8; 32];

impl CallRecord {
    /// Of a call that was begun, or was about to be, when the daemon ended: nobody knows what came of it.
    pub fn cut_off(at: Timestamp, session: &SessionKey, run: &RunId, call: ToolCall) -> Self {
        Self {
            at,
            session: session.clone(),
            run: run.clone(),
            input: digest(call.input.to_string().as_bytes()),
            call: call.id,
            tool: call.name,
            usage: CallUsage::default(),
            took: Duration::ZERO,
            is_error: true,
            result: digest(b""),
        }
    }

    /// The record as it is kept: JSON.
    pub fn to_json(&self) -> String {
        json!({
            "at": self.at.as_millis(),
            "owner": self.session.owner().as_str(),
            "session": self.session.as_str(),
            "run": self.run.as_str(),
            "call": self.call.as_str(),
            "tool": self.tool.as_str(),
            "input": hex(&self.input),
            "grants": self.usage.grants,
            "fuel": self.usage.fuel,
            "took_us": u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX),
            "is_error": self.is_error,
            "result": hex(&self.result),
        })
        .to_string()
    }
}

/// The hash of the record with this number, which follows the one with the hash `before`.
pub fn chained(before: &ChainHash, number: u64, record: &str) -> ChainHash {
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(number.to_be_bytes());
    hash.update(record);
    hash.finalize().into()
}

/// The digest of an input or a result.
pub fn digest(text: &[u8]) -> [u8; 32] {
    Sha256::digest(text).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_over_all_before_it_its_number_and_its_record() {
        let zero = [0; 32];
        let first = chained(&zero, 1, "{}");
        assert_ne!(first, chained(&zero, 2, "{}"));
        assert_ne!(first, chained(&zero, 1, "{ }"));
        assert_ne!(first, chained(&first, 1, "{}"));
        assert_eq!(first, chained(&zero, 1, "{}"));
    }

    #[test]
    fn a_record_says_who_did_what_and_nothing_that_was_said() {
        let record = CallRecord {
            at: Timestamp::from_millis(7),
            session: SessionKey::parse("ci/main:cli:ada:main").unwrap(),
            run: "r1".into(),
            call: "c1".into(),
            tool: "notes".into(),
            input: digest(b"geheim"),
            usage: CallUsage { fuel: Some(9), grants: vec!["store:notes".to_owned()] },
            took: Duration::from_millis(2),
            is_error: false,
            result: digest(b"geheim"),
        };
        let json: serde_json::Value = serde_json::from_str(&record.to_json()).unwrap();
        assert_eq!(json["owner"], record.session.owner().as_str());
        assert_eq!(
            (&json["tool"], &json["fuel"], &json["took_us"]),
            (&json!("notes"), &json!(9), &json!(2000))
        );
        assert_eq!(json["grants"][0], "store:notes");
        assert!(!record.to_json().contains("geheim"));
    }
}
