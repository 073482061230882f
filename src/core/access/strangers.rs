//! Who comes from outside, and how much of what is said about them is told.
//!
//! What a stranger sends may be of any size and come at any rate: of each source one line a minute is
//! written about each thing it does, with the number of those that were left out, and no more than so
//! many sources are told apart.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::net::Ipv6Addr;
use std::time::Duration;

use crate::time::Timestamp;

/// How often something is told of one source.
pub const TOLD_EVERY: Duration = Duration::from_secs(60);

/// How many sources are told apart. Those beyond are one.
const SOURCES_MAX: usize = 256;

/// The most bytes of anything a stranger says.
const WORDS_BYTES_MAX: usize = 200;

/// From where somebody comes, as far as it matters: whoever has one address of an IPv6 network has all
/// of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// This address, or the /64 it is of.
    Address(IpAddr),
    /// This user of this host.
    User(u32),
    /// All those that are not told apart.
    Others,
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into()
            }
            address => address,
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V6(address)) if !address.is_loopback() => write!(f, "{address}/64"),
            Self::Address(address) => address.fmt(f),
            Self::User(user) => write!(f, "user {user}"),
            Self::Others => f.write_str("other addresses"),
        }
    }
}

/// What a stranger said, as much of it as is written down.
pub fn words(said: &str) -> String {
    if said.len() <= WORDS_BYTES_MAX {
        return said.to_owned();
    }
    let end = said.floor_char_boundary(WORDS_BYTES_MAX);
    format!("{}... ({} bytes)", &said[..end], said.len())
}

/// What was told of whom, and what was not.
#[derive(Debug, Default)]
pub struct Tally(HashMap<(Source, &'static str), Throttle>);

#[derive(Debug)]
struct Throttle {
    at: Timestamp,
    /// How many were left out since.
    untold: u64,
}

/// That something was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untold {
    /// Where the attempts came from.
    pub source: Source,
    /// What was attempted.
    pub what: &'static str,
    /// How many attempts were left out of the log.
    pub count: u64,
}

impl Tally {
    /// Somebody did something: whether it is told, with how many that were left out since the last time.
    pub fn note(&mut self, source: Source, what: &'static str, now: Timestamp) -> Option<Untold> {
        let is_known = self.0.contains_key(&(source, what));
        let source = if is_known || self.0.len() < SOURCES_MAX { source } else { Source::Others };
        let Some(told) = self.0.get_mut(&(source, what)) else {
            self.0.insert((source, what), Throttle { at: now, untold: 0 });
            return Some(Untold { source, what, count: 0 });
        };
        if now.since(told.at) < TOLD_EVERY {
            told.untold = told.untold.saturating_add(1);
            return None;
        }
        told.at = now;
        Some(Untold { source, what, count: std::mem::take(&mut told.untold) })
    }

    /// What was left out a while ago and is to be told now. Sources that were quiet since are forgotten.
    pub fn due(&mut self, now: Timestamp) -> Vec<Untold> {
        let mut due = Vec::new();
        self.0.retain(|(source, what), told| {
            if now.since(told.at) < TOLD_EVERY {
                return true;
            }
            let count = std::mem::take(&mut told.untold);
            told.at = now;
            if count > 0 {
                due.push(Untold { source: *source, what, count });
            }
            count > 0
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn later(secs: u64) -> Timestamp {
        NOW.after(Duration::from_secs(secs))
    }

    fn address(text: &str) -> Source {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn one_line_a_minute_is_told_and_the_rest_in_sum() {
        let (mut tally, source) = (Tally::default(), address("10.0.0.1"));
        let untold = |what, count| Untold { source, what, count };
        assert_eq!(tally.note(source, "a", NOW), Some(untold("a", 0)));
        assert_eq!(tally.note(source, "b", NOW), Some(untold("b", 0)), "something else");
        for _ in 0..1000 {
            assert_eq!(tally.note(source, "a", later(59)), None);
        }
        assert_eq!(tally.due(later(59)), []);
        assert_eq!(tally.note(source, "a", later(60)), Some(untold("a", 1000)));
        assert_eq!(tally.note(source, "a", later(61)), None);
        assert_eq!(tally.due(later(120)), [untold("a", 1)], "also where nothing follows");
        assert_eq!(tally.due(later(180)), []);
        assert!(tally.0.is_empty());
    }

    #[test]
    fn many_sources_are_one() {
        let mut tally = Tally::default();
        let lines = (0..100_000_u32)
            .filter_map(|n| tally.note(Source::from(IpAddr::from(n.to_be_bytes())), "a", NOW));
        assert_eq!(lines.count(), SOURCES_MAX + 1);
        assert_eq!(tally.0.len(), SOURCES_MAX + 1);
        let due = tally.due(later(60));
        let others = 100_000 - SOURCES_MAX as u64 - 1;
        assert_eq!(due, [Untold { source: Source::Others, what: "a", count: others }]);
    }

    #[test]
    fn a_network_is_one_source() {
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:1"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
        assert_ne!(address("10.0.0.1"), address("10.0.0.2"));
        assert_eq!(address("2001:db8::1").to_string(), "2001:db8::/64");
        assert_eq!(address("::1").to_string(), "::1");
    }

    proptest! {
        #[test]
        fn words_are_short(said in any::<String>(), times in 1usize..500) {
            let said = said.repeat(times);
            let kept = words(&said);
            prop_assert!(kept.len() <= WORDS_BYTES_MAX + 32);
            prop_assert!(said.len() > WORDS_BYTES_MAX || kept == said);
        }
    }
}
