//! How a cluster begins: the base, which is a copy of one home's store, and whether a store may follow the log.
//!
//! A cluster has an id, which no other has. Its log begins with a base; every store of the cluster is that base, or a
//! copy of one that followed the log from it. Where the log is lost, or a replica is to be believed against it, a new
//! log begins with a new base: the next **generation**. Its records are numbered from 1 again, and all that is called
//! by a generation (streams, subjects, buckets) has other names than before, so that a daemon that knows nothing of
//! it reaches nobody.
//!
//! A manifest says what a base is. It is written last, and over the one before it, so that there is one base at any
//! time, and it is whole. Of every generation before it a manifest says how far the replica was in its log that the
//! next base was made of. A store that was no further has nothing that the new base lacks.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hex::{from_hex, hex};
use crate::replica::digest::{Digest, chained};

/// The format of manifests that is written, and the latest that is read.
const FORMAT: u64 = 1;

/// The longest manifest, in bytes.
pub const MANIFEST_BYTES_MAX: usize = 64 * 1024;

/// The most bytes of a chunk.
pub const CHUNK_BYTES_MAX: u64 = 1000 * 1000;

/// The most bytes of a base.
const BYTES_MAX: u64 = 1 << 44;

/// Of so many earlier generations it is kept how they ended.
const LEFT_MAX: usize = 64;

/// The bytes of a cluster's id, each as two digits.
const ID_BYTES: usize = 16;

/// What no other cluster is called.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClusterId(String);

impl ClusterId {
    /// That of a new cluster.
    pub fn from_random(bytes: [u8; ID_BYTES]) -> Self {
        Self(hex(&bytes))
    }

    /// Reads it; none where it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (text.len() == 2 * ID_BYTES && text.bytes().all(is_digit)).then(|| Self(text.to_owned()))
    }

    /// Its digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How far a replica was in the log of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Which one.
    pub generation: u64,
    /// The last record that it had.
    pub applied: u64,
    /// The chain over all records up to that.
    pub digest: Digest,
}

/// What a base is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Of which cluster.
    pub cluster: ClusterId,
    /// Which log it is the beginning of; from 1 on.
    pub generation: u64,
    /// The last record of that log which is in it; 0 = it comes before the first.
    pub position: u64,
    /// The chain over all records up to that.
    pub digest: Digest,
    /// How large it is.
    pub bytes: u64,
    /// Its SHA-256.
    pub sha256: [u8; 32],
    /// How large its parts are, but for the last one.
    pub chunk_bytes: u64,
    /// The format of the store that it is.
    pub store_format: u64,
    /// The version of clawmux that made it.
    pub version: String,
    /// How earlier generations were left, the earliest first.
    pub left: Vec<Left>,
}

#[derive(Serialize, Deserialize)]
struct ManifestFile {
    format: u64,
    cluster: String,
    generation: u64,
    position: u64,
    digest: String,
    bytes: u64,
    sha256: String,
    chunk_bytes: u64,
    store_format: u64,
    version: String,
    #[serde(default)]
    left: Vec<LeftFile>,
}

#[derive(Serialize, Deserialize)]
struct LeftFile {
    generation: u64,
    applied: u64,
    digest: String,
}

impl Manifest {
    /// As JSON.
    ///
    /// # Errors
    /// Where it can't be written so.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let from = self.left.len().saturating_sub(LEFT_MAX);
        let left = self.left[from..].iter().map(|left| LeftFile {
            generation: left.generation,
            applied: left.applied,
            digest: hex(&left.digest),
        });
        let file = ManifestFile {
            format: FORMAT,
            cluster: self.cluster.to_string(),
            generation: self.generation,
            position: self.position,
            digest: hex(&self.digest),
            bytes: self.bytes,
            sha256: hex(&self.sha256),
            chunk_bytes: self.chunk_bytes,
            store_format: self.store_format,
            version: self.version.clone(),
            left: left.collect(),
        };
        serde_json::to_vec(&file).map_err(|error| error.to_string())
    }

    /// Reads it. What a later version adds is passed over, where that says that it may be.
    ///
    /// # Errors
    /// What is wrong with it, in words that come after "the manifest of the base".
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(format!("has {} bytes, and {MANIFEST_BYTES_MAX} are the most", bytes.len()));
        }
        #[derive(Deserialize)]
        struct Version {
            format: u64,
        }
        let unread = |error: serde_json::Error| format!("can't be read: {error}");
        let Version { format } = serde_json::from_slice(bytes).map_err(unread)?;
        if format > FORMAT {
            return Err(format!(
                "has format {format}, and this clawmux knows up to {FORMAT}: use a newer clawmux"
            ));
        }
        let file: ManifestFile = serde_json::from_slice(bytes).map_err(unread)?;
        let wrong = |what: &str| format!("says no {what}");
        let digest = |text: &str, what: &str| from_hex(text).ok_or_else(|| wrong(what));
        let left = file.left.iter().map(|left| {
            let digest = digest(&left.digest, "digest of an earlier generation")?;
            Ok::<_, String>(Left { generation: left.generation, applied: left.applied, digest })
        });
        let manifest = Self {
            cluster: ClusterId::parse(&file.cluster).ok_or_else(|| wrong("id of a cluster"))?,
            generation: file.generation,
            position: file.position,
            digest: digest(&file.digest, "digest of the log")?,
            bytes: file.bytes,
            sha256: digest(&file.sha256, "digest of the base")?,
            chunk_bytes: file.chunk_bytes,
            store_format: file.store_format,
            version: file.version,
            left: left.collect::<Result<_, _>>()?,
        };
        if manifest.generation == 0 {
            return Err(wrong("generation"));
        }
        if !(1..=BYTES_MAX).contains(&manifest.bytes) {
            return Err(wrong("size of the base"));
        }
        if !(1..=CHUNK_BYTES_MAX).contains(&manifest.chunk_bytes) {
            return Err(wrong("size of its parts"));
        }
        let mut before = 0;
        for left in &manifest.left {
            if left.generation <= before || left.generation >= manifest.generation {
                return Err("names earlier generations out of their order".to_owned());
            }
            before = left.generation;
        }
        Ok(manifest)
    }

    /// How many parts it has.
    pub fn chunks(&self) -> u64 {
        self.bytes.div_ceil(self.chunk_bytes)
    }

    /// How large one of its parts is, the first being 0.
    pub fn bytes_of_chunk(&self, chunk: u64) -> u64 {
        self.bytes.saturating_sub(chunk.saturating_mul(self.chunk_bytes)).min(self.chunk_bytes)
    }
}

/// The chain over all records at the beginning of a generation, whatever its log says: over the one before it, so
/// that two stores with one digest have the same past.
pub fn begun(before: &Digest, cluster: &ClusterId, generation: u64) -> Digest {
    chained(before, generation, "base", cluster.as_str().as_bytes())
}

/// What a store is to a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// There is none, or nothing in it that anybody would miss.
    Nothing,
    /// Something, and it is of no cluster: what, in words.
    Own(Vec<String>),
    /// It is of a cluster.
    Replica(Replica),
}

/// A store of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Of which one.
    pub cluster: ClusterId,
    /// How far it is in which log.
    pub at: Left,
    /// How earlier logs were left, the earliest first.
    pub left: Vec<Left>,
}

/// What a log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The first place that still has a record; one more than the last where there is none.
    pub first: u64,
    /// The last place that was given out; 0 where none was.
    pub last: u64,
}

/// How a store gets to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It follows from where it is.
    Follow,
    /// The base takes its place, and follows.
    Take,
}

/// How a store gets to this log, which begins with this base.
///
/// # Errors
/// Why it does not, and what to do.
pub fn way(held: &Held, base: &Manifest, log: Reach) -> Result<Way, String> {
    let way = match held {
        Held::Nothing => Way::Take,
        Held::Own(what) => return Err(holds_something(what)),
        Held::Replica(replica) => way_of(replica, base, log)?,
    };
    if way == Way::Take {
        if log.last < base.position {
            return Err(format!(
                "the log ends at record {}, and its base stands for {}: the servers have lost records. {REBUILD}",
                log.last, base.position
            ));
        }
        if log.first > base.position + 1 {
            return Err(format!(
                "the log begins with record {}, and its base stands for {}: what was between is gone. {REBUILD}",
                log.first, base.position
            ));
        }
    }
    Ok(way)
}

/// What to do where a store says that it has more than the servers.
const LOST_OR_DAMAGED: &str = "Where other nodes follow the log, move the files of this store away and start the daemon, \
                               which takes it from the log. Only where none does, run `clawmux cluster rebuild` on the \
                               node whose store has most: that is where a new log begins";

const REBUILD: &str =
    "Run `clawmux cluster rebuild` on the node whose store has most: that is where a new log begins";

fn way_of(replica: &Replica, base: &Manifest, log: Reach) -> Result<Way, String> {
    let (ours, theirs) = (&replica.cluster, &base.cluster);
    if ours != theirs {
        return Err(format!(
            "the store of this home is of cluster {ours}, and the servers have cluster {theirs}: see to \
             cluster.servers and cluster.name; or move the store away to join this one; or `clawmux cluster leave`, \
             where it is to go on alone"
        ));
    }
    let Left { generation, applied, digest } = replica.at;
    if generation == base.generation {
        return way_within(applied, &digest, base, log);
    }
    if generation > base.generation {
        return Err(format!(
            "the store of this home is of generation {generation} of the cluster, and the servers have {}: they are \
             older than the store, or the store is damaged. {LOST_OR_DAMAGED}",
            base.generation
        ));
    }
    let Some(left) = base.left.iter().find(|left| left.generation == generation) else {
        return Err(format!(
            "the cluster has a new log (generation {}), and how the one that the store of this home is of \
             (generation {generation}) was left is not known any more: move the store away to join anew",
            base.generation
        ));
    };
    let (end, is_same) = (left.applied, left.digest == digest);
    if applied > end {
        return Err(format!(
            "the log that the store of this home follows (generation {generation}) was left at record {end} when the \
             cluster was rebuilt, and the store has {applied}: what is beyond is in this store alone. Move it away to \
             join without that; or run `clawmux cluster rebuild` here, where it is to count"
        ));
    }
    if applied == end && !is_same {
        return Err(format!(
            "the store of this home has another record {applied} of the log than the cluster was rebuilt from: move \
             it away to join anew"
        ));
    }
    Ok(Way::Take)
}

fn way_within(applied: u64, digest: &Digest, base: &Manifest, log: Reach) -> Result<Way, String> {
    if applied > log.last {
        return Err(format!(
            "the log ends at record {}, and the store of this home has {applied}: the servers have lost records, or the \
             store is damaged. {LOST_OR_DAMAGED}",
            log.last
        ));
    }
    if applied == base.position && *digest != base.digest {
        return Err(format!(
            "the store of this home has another record {applied} of the log than the base of the cluster: move it \
             away to join anew"
        ));
    }
    if log.first <= applied + 1 {
        return Ok(Way::Follow);
    }
    if applied < base.position {
        return Ok(Way::Take);
    }
    Err(format!(
        "the log begins with record {}, and the store of this home has those up to {applied}: what is between is \
         gone. {REBUILD}",
        log.first
    ))
}

/// What keeps a store from joining that is of no cluster.
fn holds_something(what: &[String]) -> String {
    const NAMED_MAX: usize = 5;
    let mut named = what[..what.len().min(NAMED_MAX)].join(", ");
    if what.len() > NAMED_MAX {
        named.push_str(" and more");
    }
    format!(
        "the store of this home is of no cluster, and is not empty ({named}): move it away to join the cluster without \
         it. (`clawmux cluster init` begins a cluster with it, under another cluster.name)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn id(nth: u8) -> ClusterId {
        ClusterId::from_random([nth; ID_BYTES])
    }

    fn manifest(generation: u64, left: &[(u64, u64)]) -> Manifest {
        Manifest {
            cluster: id(1),
            generation,
            position: 0,
            digest: [generation as u8; 32],
            bytes: 1000,
            sha256: [7; 32],
            chunk_bytes: 300,
            store_format: 20,
            version: "0.1".to_owned(),
            left: left
                .iter()
                .map(|&(generation, applied)| Left { generation, applied, digest: [9; 32] })
                .collect(),
        }
    }

    fn replica(cluster: u8, generation: u64, applied: u64, digest: u8) -> Held {
        let at = Left { generation, applied, digest: [digest; 32] };
        Held::Replica(Replica { cluster: id(cluster), at, left: Vec::new() })
    }

    #[test]
    fn a_store_follows_takes_the_base_or_is_told_what_to_do() {
        let reach = |first, last| Reach { first, last };
        let (first, third) = (manifest(1, &[]), manifest(3, &[(1, 50), (2, 20)]));
        let log = reach(1, 100);
        let refused = |held: Held, base: &Manifest, log, words: &str| {
            let why = way(&held, base, log).unwrap_err();
            assert!(why.contains(words), "{why}");
        };
        assert_eq!(way(&Held::Nothing, &first, log), Ok(Way::Take));
        assert_eq!(way(&Held::Nothing, &first, reach(1, 0)), Ok(Way::Take));
        refused(Held::Nothing, &first, reach(5, 100), "begins with record 5, and its base stands for 0");
        let own = Held::Own(vec!["sessions: 3".to_owned()]);
        refused(own, &first, log, "not empty (sessions: 3): move it away");
        refused(replica(2, 1, 5, 1), &first, log, &format!("cluster {}, and the servers", id(2)));
        for applied in [1, 99, 100] {
            assert_eq!(way(&replica(1, 1, applied, 8), &first, log), Ok(Way::Follow));
        }
        assert_eq!(way(&replica(1, 1, 0, 1), &first, reach(1, 0)), Ok(Way::Follow));
        refused(replica(1, 1, 0, 2), &first, log, "another record 0");
        refused(replica(1, 1, 101, 8), &first, log, "the log ends at record 100");
        refused(replica(1, 1, 3, 8), &first, reach(5, 100), "the log begins with record 5");
        assert_eq!(way(&replica(1, 1, 4, 8), &first, reach(5, 100)), Ok(Way::Follow));
        let later = Manifest { position: 60, ..first.clone() };
        assert_eq!(way(&replica(1, 1, 3, 8), &later, reach(50, 100)), Ok(Way::Take));
        refused(Held::Nothing, &later, reach(1, 59), "its base stands for 60");
        refused(replica(1, 2, 3, 8), &first, log, "they are older than the store");
        assert_eq!(way(&replica(1, 1, 50, 9), &third, log), Ok(Way::Take));
        assert_eq!(way(&replica(1, 2, 19, 0), &third, log), Ok(Way::Take));
        refused(replica(1, 1, 50, 8), &third, log, "another record 50");
        refused(replica(1, 1, 51, 8), &third, log, "what is beyond is in this store alone");
        refused(replica(1, 1, 51, 8), &manifest(3, &[(2, 20)]), log, "is not known any more");
    }

    #[test]
    fn what_is_no_manifest_is_refused_by_name() {
        let good = String::from_utf8(manifest(3, &[(1, 50), (2, 20)]).to_bytes().unwrap()).unwrap();
        let with = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            Manifest::from_bytes(good.replace(from, to).as_bytes()).unwrap_err()
        };
        assert!(with("\"format\":1", "\"format\":2").contains("use a newer clawmux"));
        assert!(with("\"generation\":3", "\"generation\":0").contains("no generation"));
        assert!(with("\"generation\":3", "\"generation\":2").contains("out of their order"));
        assert!(with("\"bytes\":1000", "\"bytes\":0").contains("no size of the base"));
        assert!(with("\"chunk_bytes\":300", "\"chunk_bytes\":1000001").contains("no size of its parts"));
        assert!(with(id(1).as_str(), "x").contains("no id of a cluster"));
        assert!(with(&hex(&[7; 32]), "07").contains("no digest of the base"));
        assert!(Manifest::from_bytes(&vec![b' '; MANIFEST_BYTES_MAX + 1]).unwrap_err().contains("the most"));
        assert!(Manifest::from_bytes(b"{").unwrap_err().contains("can't be read"));
    }

    prop_compose! {
        fn any_manifest()(
            id in any::<[u8; ID_BYTES]>(),
            (position, store_format) in any::<(u64, u64)>(),
            (digest, sha256) in any::<([u8; 32], [u8; 32])>(),
            bytes in 1..=BYTES_MAX,
            chunk_bytes in 1..=CHUNK_BYTES_MAX,
            version in ".{0,20}",
            left in vec((1_u64..1000, any::<u64>(), any::<[u8; 32]>()), 0..5),
        ) -> Manifest {
            let mut generation = 0;
            let left: Vec<Left> = left.into_iter().map(|(step, applied, digest)| {
                generation += step;
                Left { generation, applied, digest }
            }).collect();
            let (cluster, generation) = (ClusterId::from_random(id), generation + 1);
            Manifest {
                cluster, generation, position, digest, bytes, sha256, chunk_bytes, store_format, version, left
            }
        }
    }

    proptest! {
        #[test]
        fn a_manifest_is_read_as_it_is_written(manifest in any_manifest()) {
            let bytes = manifest.to_bytes().unwrap();
            prop_assert_eq!(Manifest::from_bytes(&bytes), Ok(manifest.clone()));
            let last = manifest.chunks() - 1;
            prop_assert_eq!(last * manifest.chunk_bytes + manifest.bytes_of_chunk(last), manifest.bytes);
            prop_assert!(manifest.bytes_of_chunk(last) > 0 && manifest.bytes_of_chunk(last + 1) == 0);
        }

        #[test]
        fn a_damaged_manifest_is_read_as_something_that_can_be_or_refused(
            manifest in any_manifest(),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            end in any::<prop::sample::Index>(),
            is_cut in any::<bool>(),
        ) {
            let mut bytes = manifest.to_bytes().unwrap();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if is_cut {
                bytes.truncate(end.index(bytes.len()));
            }
            if let Ok(read) = Manifest::from_bytes(&bytes) {
                prop_assert!(read.chunks() >= 1 && read.bytes_of_chunk(0) <= CHUNK_BYTES_MAX);
                prop_assert_eq!(Manifest::from_bytes(&read.to_bytes().unwrap()), Ok(read));
            }
        }

        #[test]
        fn bytes_of_any_kind_are_no_reason_to_panic(bytes in vec(any::<u8>(), 0..200)) {
            let _ = Manifest::from_bytes(&bytes);
        }

        #[test]
        fn an_id_is_read_as_it_is_written(bytes in any::<[u8; ID_BYTES]>(), text in "[0-9a-gA-F]{0,40}") {
            let id = ClusterId::from_random(bytes);
            prop_assert_eq!(ClusterId::parse(id.as_str()), Some(id));
            let read = ClusterId::parse(&text);
            prop_assert!(read.is_none_or(|id| id.as_str() == text));
        }
    }
}
