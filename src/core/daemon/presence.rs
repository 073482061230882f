//! Who is connected, or was a short while ago, as operators are shown it.
//!
//! One entry for each client, whichever of its connections is open: a client is known by its device,
//! else by the instance it says it is, else it is its connection. An entry outlives its connection by
//! [`KEPT`], so that a client that comes back is seen to be the same; at most [`ENTRIES_MAX`] are
//! shown, the latest.
//!
//! Programs that come for one question (`mode` is `cli` or `probe`) are not entered: they would push
//! everybody else out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::access::About;
use crate::ids::ConnectionId;
use crate::scope::{Role, Scopes};
use crate::time::Timestamp;

/// How long a client is shown after it has left, or after what was told of it.
pub const KEPT: Duration = Duration::from_secs(5 * 60);

/// The most entries that are shown, the daemon's own included.
pub const ENTRIES_MAX: usize = 200;

/// The longest text that is kept of what a client tells, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// Who is connected, or was a short while ago.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Presence {
    /// Counts up with every change.
    pub version: u64,
    /// The clients, the latest first.
    pub present: Vec<Present>,
}

/// One client that is or was connected.
#[derive(Clone, Debug, PartialEq)]
pub struct Present {
    /// Its connection; none for the daemon itself and for what was only told of.
    pub connection: Option<ConnectionId>,
    /// Where it comes from, without a port.
    pub host: String,
    /// What it says of itself.
    pub about: About,
    /// The id of its device, where it showed one.
    pub device: Option<Arc<str>>,
    /// The role in which it connects.
    pub role: Role,
    /// What it may do.
    pub scopes: Scopes,
    /// Why it is told of: `connect`, `disconnect`, `self`, or what a client said.
    pub reason: String,
    /// What was said of it, for people.
    pub text: Option<String>,
    /// For how long nobody touched it, as far as it was said.
    pub idle: Option<Duration>,
    /// When it connected, left or reported itself.
    pub at: Timestamp,
}

/// What a client tells of itself or of another, to be shown among who is connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PresenceReport {
    /// The text, for people.
    pub text: String,
    /// The device it is about.
    pub device: Option<String>,
    /// Where that is, without a port.
    pub host: Option<String>,
    /// What it is; empty where that is not said.
    pub about: About,
    /// Why the client reports itself.
    pub reason: Option<String>,
    /// For how long nobody touched it.
    pub idle: Option<Duration>,
}

/// How a client's entry is found again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// By its device or instance, or by what was told of it.
    Named(String),
    /// By nothing but its connection.
    Connection(ConnectionId),
}

/// A client in the list.
#[derive(Clone, Debug)]
struct Entry {
    present: Present,
    /// Its connections that are open.
    open: BTreeSet<ConnectionId>,
}

/// The clients that are connected or reported themselves lately.
#[derive(Clone, Debug)]
pub struct Presences {
    /// The entry of the daemon itself.
    own: Present,
    entries: BTreeMap<Who, Entry>,
    who: BTreeMap<ConnectionId, Who>,
    /// What is shown; none where that changed.
    shown: Option<Arc<Presence>>,
    version: u64,
}

impl Presences {
    /// Only the daemon itself, which is this.
    pub fn new(own: Present) -> Self {
        Self { own, entries: BTreeMap::new(), who: BTreeMap::new(), shown: None, version: 0 }
    }

    /// A client has connected; whether that is of anybody's interest.
    pub fn join(&mut self, connection: ConnectionId, present: Present) -> bool {
        if matches!(present.about.mode.as_str(), "cli" | "probe") {
            return false;
        }
        let named = named(present.device.as_deref()).or_else(|| named(present.about.instance_id.as_deref()));
        let who = named.unwrap_or(Who::Connection(connection));
        let entry = self
            .entries
            .entry(who.clone())
            .or_insert_with(|| Entry { present: present.clone(), open: BTreeSet::new() });
        entry.present = present;
        entry.open.insert(connection);
        self.who.insert(connection, who);
        self.changed();
        true
    }

    /// A connection has ended; whether that is of anybody's interest.
    pub fn leave(&mut self, now: Timestamp, connection: ConnectionId) -> bool {
        let Some(who) = self.who.remove(&connection) else { return false };
        let Some(entry) = self.entries.get_mut(&who) else { return false };
        entry.open.remove(&connection);
        if let Some(last) = entry.open.last() {
            entry.present.connection = Some(*last);
        } else {
            entry.present.connection = None;
            "disconnect".clone_into(&mut entry.present.reason);
            entry.present.at = now;
        }
        self.changed();
        true
    }

    /// A client tells of itself, or of somebody else.
    pub fn tell(&mut self, now: Timestamp, mut told: PresenceReport) {
        told.text.truncate(told.text.floor_char_boundary(TEXT_BYTES_MAX));
        let who = named(told.device.as_deref())
            .or_else(|| named(told.about.instance_id.as_deref()))
            .or_else(|| named(told.about.display_name.as_deref()))
            .or_else(|| named(told.host.as_deref()))
            .unwrap_or_else(|| {
                Who::Named(told.text[..told.text.floor_char_boundary(64)].to_ascii_lowercase())
            });
        let entry = self.entries.entry(who).or_insert_with(|| Entry {
            present: Present {
                connection: None,
                host: String::new(),
                about: About::default(),
                device: told.device.as_deref().map(Arc::from),
                role: Role::default(),
                scopes: Scopes::NONE,
                reason: String::new(),
                text: None,
                idle: None,
                at: now,
            },
            open: BTreeSet::new(),
        });
        let Present { host, about, reason, text, idle, at, .. } = &mut entry.present;
        let set = |to: &mut String, from: String| {
            if !from.is_empty() {
                *to = from;
            }
        };
        set(host, told.host.unwrap_or_default());
        set(&mut about.version, told.about.version);
        set(&mut about.platform, told.about.platform);
        set(&mut about.mode, told.about.mode);
        set(reason, told.reason.unwrap_or_default());
        for (to, from) in [
            (&mut about.device_family, told.about.device_family),
            (&mut about.model_identifier, told.about.model_identifier),
            (&mut about.display_name, told.about.display_name),
            (&mut about.instance_id, told.about.instance_id),
        ] {
            if from.is_some() {
                *to = from;
            }
        }
        *idle = told.idle.or(*idle);
        *text = Some(told.text);
        *at = now;
        self.bound();
        self.changed();
    }

    /// Forgets who left too long ago; whether there was anybody.
    pub fn expire(&mut self, now: Timestamp) -> bool {
        let before = self.entries.len();
        self.entries.retain(|_, entry| !entry.open.is_empty() || now.since(entry.present.at) <= KEPT);
        let changed = self.entries.len() < before;
        if changed {
            self.changed();
        }
        changed
    }

    /// Who there is, the latest first, and the daemon itself.
    pub fn show(&mut self, now: Timestamp) -> Arc<Presence> {
        if let Some(shown) = &self.shown {
            return shown.clone();
        }
        self.bound();
        let mut present: Vec<&Present> = self.entries.values().map(|entry| &entry.present).collect();
        present.sort_by_key(|present| std::cmp::Reverse((present.at, present.connection)));
        present.truncate(ENTRIES_MAX - 1);
        let own = Present { at: now, ..self.own.clone() };
        let present = std::iter::once(own).chain(present.into_iter().cloned()).collect();
        let shown = Arc::new(Presence { version: self.version, present });
        self.shown = Some(shown.clone());
        shown
    }

    /// How many clients are known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn changed(&mut self) {
        self.shown = None;
        self.version += 1;
    }

    /// Lets go of those who left longest ago where more are kept than would be shown.
    fn bound(&mut self) {
        let mut left: Vec<(Timestamp, Who)> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.open.is_empty())
            .map(|(who, entry)| (entry.present.at, who.clone()))
            .collect();
        if left.len() >= ENTRIES_MAX {
            left.sort();
            for (_, who) in left.drain(..left.len() + 1 - ENTRIES_MAX) {
                self.entries.remove(&who);
            }
        }
    }
}

fn named(text: Option<&str>) -> Option<Who> {
    let text = text?.trim();
    (!text.is_empty()).then(|| Who::Named(text.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Present {
        Present { reason: "self".into(), ..present("gateway", None) }
    }

    fn present(host: &str, device: Option<&str>) -> Present {
        Present {
            connection: None,
            host: host.into(),
            about: About { mode: "ui".into(), ..About::default() },
            device: device.map(Arc::from),
            role: Role::Operator,
            scopes: Scopes::READONLY,
            reason: "connect".into(),
            text: None,
            idle: None,
            at: Timestamp::default(),
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn hosts(presences: &mut Presences) -> Vec<String> {
        presences.show(at(0)).present.iter().map(|present| present.host.clone()).collect()
    }

    #[test]
    fn a_client_is_shown_from_its_first_connection_until_a_while_after_its_last() {
        let mut presences = Presences::new(own());
        assert_eq!(hosts(&mut presences), ["gateway"]);
        let version = presences.show(at(0)).version;
        presences.join(ConnectionId(1), present("a", Some("D1")));
        presences.join(ConnectionId(2), present("b", Some("d1 ")));
        presences.join(ConnectionId(3), present("c", None));
        assert_eq!(hosts(&mut presences), ["gateway", "b", "c"], "one entry for one device");
        assert!(presences.show(at(0)).version > version);

        assert!(presences.leave(at(10), ConnectionId(1)));
        assert_eq!(presences.show(at(0)).present[1].reason, "connect", "another connection is open");
        assert!(presences.leave(at(20), ConnectionId(2)) && !presences.leave(at(20), ConnectionId(2)));
        assert_eq!(presences.show(at(0)).present[1].reason, "disconnect");
        assert!(!presences.expire(at(320)));
        let version = presences.show(at(0)).version;
        assert!(presences.expire(at(321)) && presences.show(at(0)).version > version);
        assert_eq!(hosts(&mut presences), ["gateway", "c"], "who is connected does not expire");
    }

    #[test]
    fn who_comes_for_one_question_is_not_entered() {
        let mut presences = Presences::new(own());
        for mode in ["cli", "probe"] {
            let mut passing = present("x", None);
            passing.about.mode = mode.into();
            assert!(!presences.join(ConnectionId(1), passing));
        }
        assert!(presences.is_empty() && !presences.leave(at(1), ConnectionId(1)));
    }

    #[test]
    fn what_is_told_adds_to_what_is_known_and_expires() {
        let mut presences = Presences::new(own());
        presences.join(ConnectionId(1), present("a", Some("d1")));
        let told = |text: &str, device: Option<&str>, instance: Option<&str>| PresenceReport {
            text: text.into(),
            device: device.map(str::to_owned),
            about: About { instance_id: instance.map(str::to_owned), ..About::default() },
            reason: Some("launch".into()),
            ..PresenceReport::default()
        };
        presences.tell(at(1), told("hello", Some("D1"), None));
        presences.tell(at(2), told(&"é".repeat(2000), None, Some("mac")));
        let shown = presences.show(at(2));
        assert_eq!(shown.present.len(), 3);
        assert_eq!(shown.present[1].text.as_ref().map(String::len), Some(1024), "cut");
        let known = &shown.present[2];
        assert_eq!(
            (known.host.as_str(), known.text.as_deref(), known.reason.as_str()),
            ("a", Some("hello"), "launch")
        );
        assert_eq!(known.scopes, Scopes::READONLY, "nobody gets scopes by being told of");
        presences.expire(at(303));
        assert_eq!(hosts(&mut presences), ["gateway", "a"]);
    }

    #[test]
    fn at_most_so_many_are_kept_and_shown() {
        let mut presences = Presences::new(own());
        for id in 0..1000 {
            presences.join(ConnectionId(id), Present { at: at(id), ..present("x", None) });
        }
        assert_eq!(presences.show(at(0)).present.len(), ENTRIES_MAX);
        assert_eq!(presences.len(), 1000, "who is connected is known, shown or not");
        for id in 0..1000 {
            presences.leave(at(2000 + id), ConnectionId(id));
        }
        assert_eq!(presences.show(at(0)).present.len(), ENTRIES_MAX);
        assert!(presences.len() < ENTRIES_MAX, "{}", presences.len());
        for n in 0..1000u64 {
            presences.tell(
                at(3000 + n),
                PresenceReport { text: format!("text {n}"), ..PresenceReport::default() },
            );
            assert!(presences.len() <= ENTRIES_MAX);
        }
    }
}
