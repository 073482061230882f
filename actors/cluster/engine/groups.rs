//! Records that come while others are on their way go into the log together, as one batch: the servers agree on it
//! once, however many sessions they are of.
//!
//! A batch is there as a whole or not at all. So a record that would be refused, or is for the moment, has all of its
//! batch refused; each is written alone then, and is told what became of it alone. Where there was no answer to the
//! batch there is none to any of them.
//!
//! Who has waited for an answer for a while gives way to the next: answers are lost where a connection is.
//!
//! A record never shares a batch with another one of its subject, nor with another guard of its key: one of the two
//! would be refused for nothing.

use std::collections::{HashSet, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Engine;
use super::writing::{NotWritten, Published};

/// Batches on their way at once, of one engine. With fewer there are more records in each.
const WRITERS_MAX: usize = 4;

/// How long the next ones wait for an answer to them, at most.
const TURN_MAX: Duration = Duration::from_millis(200);

/// Batches on their way at once, with those that are overdue. A stream takes 50, of all daemons.
const UNDER_WAY_MAX: usize = 16;

/// Records of one batch.
const RECORDS_MAX: usize = 128;

/// Bytes of one batch that are not its first record's.
const BYTES_MAX: usize = 512 * 1024;

/// Records of a batch that was refused that are on their way alone at once.
const ALONE_MAX: usize = 4;

/// A record that is to be written.
#[derive(Debug)]
pub(super) struct Entry {
    /// The guard of its key, and where it is in the log.
    pub(super) guard: Option<(String, Bytes)>,
    pub(super) subject: String,
    /// The last sequence of its subject.
    pub(super) expected: u64,
    pub(super) record: Bytes,
}

impl Entry {
    pub(super) fn bytes(&self) -> usize {
        self.record.len() + self.guard.as_ref().map_or(0, |(_, guard)| guard.len())
    }
}

type Waiting = (Entry, oneshot::Sender<Published>);

/// What waits to be written. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups(Arc<Mutex<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Who writes batches, one after the other, as long as something waits.
    writers: usize,
    /// Batches whose writers gave way.
    overdue: usize,
}

impl Groups {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// What goes next, together; nothing where nothing waits.
    fn take(&mut self) -> Vec<Waiting> {
        let (mut group, mut left) = (Vec::new(), VecDeque::new());
        let (mut subjects, mut bytes) = (HashSet::new(), 0);
        while let Some((entry, answer)) = self.waiting.pop_front() {
            if answer.is_closed() {
                continue;
            }
            let guard = entry.guard.as_ref().map(|(guard, _)| guard);
            if subjects.contains(&entry.subject) || guard.is_some_and(|guard| subjects.contains(guard)) {
                left.push_back((entry, answer));
                continue;
            }
            bytes += entry.bytes();
            if !group.is_empty() && (group.len() == RECORDS_MAX || bytes > BYTES_MAX) {
                left.push_back((entry, answer));
                break;
            }
            subjects.extend(guard.cloned().into_iter().chain([entry.subject.clone()]));
            group.push((entry, answer));
        }
        left.append(&mut self.waiting);
        self.waiting = left;
        group
    }
}

/// What a writer counts as, until he is dropped.
struct Writer {
    groups: Groups,
    is_overdue: bool,
}

impl Writer {
    /// One more, where something waits and no more than may are there.
    fn begin(groups: &Groups) -> Option<Self> {
        let mut queue = groups.queue();
        let may = queue.writers < WRITERS_MAX && queue.writers + queue.overdue < UNDER_WAY_MAX;
        (may && !queue.waiting.is_empty()).then(|| {
            queue.writers += 1;
            Self { groups: groups.clone(), is_overdue: false }
        })
    }

    fn gives_way(&mut self) {
        let mut queue = self.groups.queue();
        queue.writers -= 1;
        queue.overdue += 1;
        self.is_overdue = true;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut queue = self.groups.queue();
        match self.is_overdue {
            true => queue.overdue -= 1,
            false => queue.writers -= 1,
        }
    }
}

impl Engine {
    /// Writes a record as soon as a batch may go, with what waits then.
    pub(super) async fn write_in_group(&self, entry: Entry) -> Published {
        let (answer, told) = oneshot::channel();
        self.groups.queue().waiting.push_back((entry, answer));
        self.begin_to_write();
        told.await.unwrap_or_else(|_| Published::Unknown("the engine is closed".to_owned()))
    }

    /// A writer begins after what is under way on this thread: what comes at the same time goes along. He ends with what
    /// waits, each of which is waited for no longer than an answer may take.
    fn begin_to_write(&self) {
        if let Some(writer) = Writer::begin(&self.groups) {
            tokio::spawn(self.clone().write_groups(writer));
        }
    }

    async fn write_groups(self, mut writer: Writer) {
        while !writer.is_overdue {
            let group = self.groups.queue().take();
            if group.is_empty() {
                break;
            }
            let mut written = pin!(self.write_group(group));
            if timeout(TURN_MAX, &mut written).await.is_err() {
                writer.gives_way();
                self.begin_to_write();
                written.await;
            }
        }
        drop(writer);
        // What came meanwhile may have found too many writers.
        self.begin_to_write();
    }

    async fn write_group(&self, group: Vec<Waiting>) {
        // One that is alone is told what became of it in any case.
        let Some(refused) = self.write_together(group).await else { return };
        let alone = futures::stream::iter(refused).for_each_concurrent(ALONE_MAX, async |waiting| {
            if !waiting.1.is_closed() {
                self.write_together(vec![waiting]).await;
            }
        });
        alone.await;
    }

    /// Writes these as one batch, and tells what became of each. Gives those back that were refused together.
    async fn write_together(&self, group: Vec<Waiting>) -> Option<Vec<Waiting>> {
        let entries: Vec<&Entry> = group.iter().map(|(entry, _)| entry).collect();
        let each: Vec<Published> = match self.put_together(&entries).await {
            Ok(places) => places.into_iter().map(Published::Acked).collect(),
            Err(NotWritten::Refused(_)) if group.len() > 1 => return Some(group),
            Err(NotWritten::Refused(said)) => vec![said],
            Err(NotWritten::Unanswered(why)) => vec![Published::Unknown(why); group.len()],
        };
        for ((_, answer), published) in group.into_iter().zip(each) {
            // Who does not wait any more finds out by what is in the log.
            let _ = answer.send(published);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(subject: &str, key: Option<&str>, bytes: usize) -> (Waiting, oneshot::Receiver<Published>) {
        let (answer, told) = oneshot::channel();
        let guard = key.map(|key| (key.to_owned(), Bytes::from_static(b"k")));
        let record = vec![b'x'; bytes].into();
        ((Entry { guard, subject: subject.to_owned(), expected: 0, record }, answer), told)
    }

    #[test]
    fn one_of_each_subject_and_key_goes_and_no_more_than_may() {
        let mut queue = Queue::default();
        let mut told = Vec::new();
        let mut add = |queue: &mut Queue, subject: &str, key, bytes| {
            let (waiting, answer) = waiting(subject, key, bytes);
            queue.waiting.push_back(waiting);
            told.push(answer);
        };
        let taken = |queue: &mut Queue| -> Vec<(String, usize)> {
            let group = queue.take();
            group.into_iter().map(|(entry, _)| (entry.subject, entry.record.len())).collect()
        };
        for (subject, key, bytes) in
            [("a", Some("k1"), 1), ("b", Some("k1"), 2), ("a", None, 3), ("c", Some("k2"), 4), ("a", None, 5)]
        {
            add(&mut queue, subject, key, bytes);
        }
        let of = |all: &[(&str, usize)]| -> Vec<(String, usize)> {
            all.iter().map(|(subject, bytes)| ((*subject).to_owned(), *bytes)).collect()
        };
        assert_eq!(taken(&mut queue), of(&[("a", 1), ("c", 4)]));
        assert_eq!(taken(&mut queue), of(&[("b", 2), ("a", 3)]));
        assert_eq!(taken(&mut queue), of(&[("a", 5)]));
        assert_eq!(taken(&mut queue), of(&[]));
        // One that is larger than a batch goes alone.
        for (subject, bytes) in [("a", BYTES_MAX + 1), ("b", 1), ("c", BYTES_MAX - 1), ("d", 1)] {
            add(&mut queue, subject, None, bytes);
        }
        assert_eq!(taken(&mut queue).len(), 1);
        assert_eq!(taken(&mut queue).len(), 2);
        assert_eq!(taken(&mut queue).len(), 1);
        for number in 0..=RECORDS_MAX {
            add(&mut queue, &number.to_string(), None, 1);
        }
        assert_eq!([taken(&mut queue).len(), taken(&mut queue).len()], [RECORDS_MAX, 1]);
    }

    #[test]
    fn what_nobody_waits_for_is_not_written() {
        let mut queue = Queue::default();
        let (gone, _) = waiting("a", None, 1);
        let (there, _told) = waiting("b", None, 1);
        queue.waiting.extend([gone, there]);
        assert_eq!(queue.take().len(), 1);
        assert!(queue.waiting.is_empty());
    }
}
