//! What a connection subscribed to, and which of its subscriptions an event is for.
//!
//! A subscription names events by patterns, of which a whole segment may be a wildcard, and may say
//! what members of their payload have to be:
//!
//! | pattern | fits |
//! |---|---|
//! | `*` alone | every event |
//! | `stream.*` | `stream.chunk`: `*` is one segment |
//! | `*.status` | `tool.status`, `agent.status` |
//! | `stream.**`, `**` | any number of segments, none included |
//! | `tool.re*` | nothing: it is refused, for it can't mean what it says |
//!
//! An event finds its subscriptions through an index: first by the member that their filters ask for
//! (`sessionId` before any other), then by the first segment of its name. So it costs nothing that
//! others are subscribed to other sessions or to other kinds of events. What a payload holds is only
//! looked at where a filter asks for it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

use crate::dialect::json::clip;
use crate::error::{Detail, Error, ErrorCode};
use crate::ids::Ticket;

/// The most patterns of one subscription, and the most bytes of one.
pub(super) const PATTERNS_MAX: usize = 64;
const PATTERN_BYTES_MAX: usize = 128;

/// The most members that a filter asks for, and the most bytes of a name or of a text among them.
pub(super) const FILTER_MAX: usize = 16;
const FILTER_BYTES_MAX: usize = 1024;

/// The member that says which session an event is about.
pub(super) const SESSION_ID: &str = "sessionId";

/// What a subscription asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Interest {
    patterns: Vec<Pattern>,
    filter: BTreeMap<String, Atom<'static>>,
}

/// Where the events of sessions come from that a subscription is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// It is told of none.
    Nowhere,
    /// From all sessions that the connection may see.
    Watch,
    /// From the one that was attached to under this ticket.
    Attached(Ticket),
}

/// A value that a filter can ask for. Numbers are equal as JavaScript has it, so they are kept as the
/// bits of their float.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Atom<'a> {
    Text(Cow<'a, str>),
    Number(u64),
    Flag(bool),
    Null,
}

impl<'a> Atom<'a> {
    /// A text.
    pub(super) fn text(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }

    /// A JSON value; none for objects and arrays, which equal nothing.
    pub(super) fn of(value: &'a Value) -> Option<Self> {
        Some(match value {
            Value::String(text) => Self::text(text),
            // The two zeros are equal.
            Value::Number(number) => Self::Number((number.as_f64()? + 0.0).to_bits()),
            Value::Bool(flag) => Self::Flag(*flag),
            Value::Null => Self::Null,
            Value::Array(_) | Value::Object(_) => return None,
        })
    }

    /// That outlives what it was read from.
    pub(super) fn owned(self) -> Atom<'static> {
        match self {
            Self::Text(text) => Atom::Text(Cow::Owned(text.into_owned())),
            Self::Number(bits) => Atom::Number(bits),
            Self::Flag(flag) => Atom::Flag(flag),
            Self::Null => Atom::Null,
        }
    }
}

/// A pattern for names of events.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// This one.
    Literal(Box<str>),
    /// Any one.
    One,
    /// Any number of them.
    Any,
}

impl Pattern {
    fn read(text: &str) -> Result<Self, Error> {
        let refuse = |why: &str| {
            Err(ErrorCode::InvalidRequest.error(format!("events: pattern {:?}: {why}", clip(text))))
        };
        if text.is_empty() {
            return refuse("must not be empty");
        }
        if text.len() > PATTERN_BYTES_MAX {
            return refuse(&format!("may have {PATTERN_BYTES_MAX} bytes"));
        }
        if text == "*" {
            return Ok(Self(vec![Segment::Any]));
        }
        let mut segments = Vec::new();
        for segment in text.split('.') {
            segments.push(match segment {
                "" => return refuse("has a segment without a name"),
                "*" => Segment::One,
                "**" => Segment::Any,
                _ if segment.contains('*') => return refuse("only a whole segment can be a wildcard"),
                literal => Segment::Literal(literal.into()),
            });
        }
        // Several in a row say no more than one.
        segments.dedup_by(|next, one| *next == Segment::Any && *one == Segment::Any);
        Ok(Self(segments))
    }

    /// Whether it fits a name. What the last `**` before a misfit took grows by a segment each time,
    /// so it takes no more steps than both have segments, multiplied.
    fn fits(&self, name: &str) -> bool {
        let mut rest = name.split('.');
        let mut at = 0;
        let mut again = None;
        loop {
            let before = rest.clone();
            match (self.0.get(at), rest.next()) {
                (Some(Segment::Any), _) => {
                    rest = before;
                    at += 1;
                    again = Some((at, rest.clone()));
                    continue;
                }
                (None, None) => return true,
                (Some(Segment::One), Some(_)) => {
                    at += 1;
                    continue;
                }
                (Some(Segment::Literal(literal)), Some(segment)) if **literal == *segment => {
                    at += 1;
                    continue;
                }
                // Nothing is left that `**` could take.
                (Some(_), None) => return false,
                (_, Some(_)) => {}
            }
            let Some((after, from)) = &mut again else { return false };
            if from.next().is_none() {
                return false;
            }
            at = *after;
            rest = from.clone();
        }
    }
}

impl Interest {
    /// What a client asked for.
    ///
    /// # Errors
    /// `InvalidRequest` where a pattern or a member of the filter can't be, or there are too many.
    pub(super) fn read<'a>(
        patterns: impl IntoIterator<Item = &'a str>,
        filter: &Map<String, Value>,
    ) -> Result<Self, Error> {
        let refuse = |why: String| Err(ErrorCode::InvalidRequest.error(why));
        let patterns = patterns.into_iter().map(Pattern::read).collect::<Result<Vec<_>, _>>()?;
        if patterns.is_empty() {
            return refuse("events: must have at least one pattern".into());
        }
        if patterns.len() > PATTERNS_MAX {
            return refuse(format!("events: may have {PATTERNS_MAX} patterns, not {}", patterns.len()));
        }
        if filter.len() > FILTER_MAX {
            return refuse(format!("filter: may have {FILTER_MAX} members, not {}", filter.len()));
        }
        let mut read = BTreeMap::new();
        for (name, value) in filter {
            let named = clip(name);
            let Some(atom) = Atom::of(value) else {
                return refuse(format!("filter.{named}: objects and arrays equal nothing"));
            };
            let text = value.as_str().map_or(0, str::len);
            if name.len().max(text) > FILTER_BYTES_MAX {
                return refuse(format!("filter.{named}: name and text may have {FILTER_BYTES_MAX} bytes"));
            }
            read.insert(name.clone(), atom.owned());
        }
        Ok(Self { patterns, filter: read })
    }

    /// The session that it is about, where it is about one.
    pub(super) fn session_id(&self) -> Option<&str> {
        match self.filter.get(SESSION_ID)? {
            Atom::Text(id) => Some(id),
            _ => None,
        }
    }

    /// Whether it asks for events of this name.
    pub(super) fn names(&self, event: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.fits(event))
    }

    /// The member that it is found by, if it has a filter.
    fn first(&self) -> Option<(&str, &Atom<'static>)> {
        let (name, atom) = self.filter.get_key_value(SESSION_ID).or_else(|| self.filter.first_key_value())?;
        Some((name, atom))
    }
}

/// A subscription.
#[derive(Clone, Debug)]
pub(super) struct Subscription {
    /// Its name, as the client knows it.
    pub(super) id: String,
    /// What it asks for.
    pub(super) interest: Interest,
    /// Where events of sessions come from.
    pub(super) source: Source,
}

/// The subscriptions of one connection.
#[derive(Debug)]
pub(super) struct Subscriptions {
    max: usize,
    made: u64,
    by_id: HashMap<String, u64>,
    /// In the order they were made.
    all: BTreeMap<u64, Subscription>,
    index: Index,
}

/// Where those are found that may be for an event.
#[derive(Debug, Default)]
struct Index {
    /// By the member their filter asks for, and what it has to be.
    filtered: BTreeMap<String, HashMap<Atom<'static>, Names>>,
    /// Without a filter.
    open: Names,
}

/// By the first segment of the names they ask for.
#[derive(Debug, Default)]
struct Names {
    by_head: HashMap<Box<str>, Vec<u64>>,
    /// That segment is a wildcard.
    any: Vec<u64>,
}

impl Names {
    fn add(&mut self, number: u64, interest: &Interest) {
        for pattern in &interest.patterns {
            let all = match pattern.0.first() {
                Some(Segment::Literal(head)) => self.by_head.entry(head.clone()).or_default(),
                _ => &mut self.any,
            };
            if all.last() != Some(&number) {
                all.push(number);
            }
        }
    }

    fn remove(&mut self, number: u64) {
        self.any.retain(|other| *other != number);
        self.by_head.retain(|_, all| {
            all.retain(|other| *other != number);
            !all.is_empty()
        });
    }

    fn is_empty(&self) -> bool {
        self.any.is_empty() && self.by_head.is_empty()
    }

    fn collect(&self, head: &str, found: &mut Vec<u64>) {
        found.extend_from_slice(&self.any);
        found.extend_from_slice(self.by_head.get(head).map_or(&[], Vec::as_slice));
    }
}

impl Index {
    fn names(&mut self, interest: &Interest) -> &mut Names {
        match interest.first() {
            Some((name, atom)) => {
                self.filtered.entry(name.to_owned()).or_default().entry(atom.clone()).or_default()
            }
            None => &mut self.open,
        }
    }

    fn remove(&mut self, number: u64, interest: &Interest) {
        self.names(interest).remove(number);
        if let Some((name, atom)) = interest.first()
            && let Some(by_value) = self.filtered.get_mut(name)
        {
            if by_value.get(atom).is_some_and(Names::is_empty) {
                by_value.remove(atom);
            }
            if by_value.is_empty() {
                self.filtered.remove(name);
            }
        }
    }
}

impl Subscriptions {
    /// At most so many.
    pub(super) fn new(max: usize) -> Self {
        Self { max, made: 0, by_id: HashMap::new(), all: BTreeMap::new(), index: Index::default() }
    }

    /// Whether there is room for one more, besides so many that are about to be.
    ///
    /// # Errors
    /// `RateLimited` where there is not.
    pub(super) fn check_room(&self, about_to_be: usize) -> Result<(), Error> {
        if self.all.len() + about_to_be < self.max {
            return Ok(());
        }
        let max = self.max;
        Err(ErrorCode::RateLimited
            .error(format!("a connection may have {max} subscriptions: unsubscribe from one first"))
            .with(Detail::Limit { name: crate::error::limit::Limit::Subscriptions, limit: max as u64 }))
    }

    /// Enters one under a name that is not in use.
    pub(super) fn add(&mut self, subscription: Subscription) {
        self.made += 1;
        self.index.names(&subscription.interest).add(self.made, &subscription.interest);
        self.by_id.insert(subscription.id.clone(), self.made);
        self.all.insert(self.made, subscription);
    }

    /// Has a subscription told from elsewhere from now on; gives where it was told from.
    pub(super) fn move_to(&mut self, id: &str, source: Source) -> Option<Source> {
        let subscription = self.all.get_mut(self.by_id.get(id)?)?;
        Some(std::mem::replace(&mut subscription.source, source))
    }

    /// Takes one out; none where there is none of this name.
    pub(super) fn remove(&mut self, id: &str) -> Option<Subscription> {
        let number = self.by_id.remove(id)?;
        let subscription = self.all.remove(&number)?;
        self.index.remove(number, &subscription.interest);
        Some(subscription)
    }

    /// All of them, in the order they were made.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Subscription> {
        self.all.values()
    }

    /// Those that an event is for, in the order they were made. `member` gives a member of its
    /// payload, none where it has no such member, and is asked for what filters name and nothing else.
    pub(super) fn matching<'p>(
        &self,
        event: &str,
        member: &mut dyn FnMut(&str) -> Option<Atom<'p>>,
    ) -> Vec<&Subscription> {
        let head = event.split('.').next().unwrap_or_default();
        let mut found = Vec::new();
        self.index.open.collect(head, &mut found);
        for (name, by_value) in &self.index.filtered {
            if let Some(atom) = member(name)
                && let Some(names) = at(by_value, &atom)
            {
                names.collect(head, &mut found);
            }
        }
        found.sort_unstable();
        found.dedup();
        let found = found.iter().filter_map(|number| self.all.get(number));
        found
            .filter(|subscription| {
                let Interest { filter, .. } = &subscription.interest;
                subscription.interest.names(event)
                    && filter.iter().all(|(name, wanted)| member(name).as_ref() == Some(wanted))
            })
            .collect()
    }
}

/// What a map of values that live for ever has under one that does not.
fn at<'m, 'p>(by_value: &'m HashMap<Atom<'p>, Names>, atom: &Atom<'p>) -> Option<&'m Names> {
    by_value.get(atom)
}

#[cfg(test)]
mod tests;
