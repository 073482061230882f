//! The streams of a cluster: made when a generation of it begins, else looked at, since an operator may have changed
//! them. One that is not there when it should be is not made anew: what it had is lost, and somebody has to know. Only
//! that of the blobs is: a cluster of an earlier version has none, and which blob is missing is seen by who needs it.
//!
//! Settings that a record could be lost by are refused. The limit of the log's bytes is only compared and
//! named: it may be changed while the cluster runs, and not every node is started anew for that.

use std::collections::HashMap;

use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType, Stream,
};

use clawmux_core::cluster::base::{ClusterId, Manifest};

use super::EngineSettings;
use super::subjects::{Bucket, Names, Subjects};
use crate::nats::{Nats, Unusable, one_line};

/// What the log's stream says of itself: which cluster it is of, and which generation.
const CLUSTER: &str = "clawmux-cluster";
const GENERATION: &str = "clawmux-generation";

/// Looks for the log, the blobs and the buckets of the generation that begins with this base.
///
/// # Errors
/// Why they can't be used, or which is not there.
pub(super) async fn look(
    nats: &Nats,
    subjects: &Subjects,
    settings: &EngineSettings,
    base: &Manifest,
) -> Result<(), Unusable> {
    let [nodes, slots, blobs, log] = wanted(subjects, settings, &base.cluster, base.generation);
    fitting(nats, &nodes).await?;
    fitting(nats, &slots).await?;
    make_if_missing(nats, &blobs).await?;
    let found = fitting(nats, &log).await?;
    for (name, wanted) in &log.metadata {
        let found = found.metadata.get(name).map_or("none", String::as_str);
        if found != wanted {
            return Err(Unusable::refused(format!(
                "the stream {} does not belong to the base of the cluster: its {name} is {found}, that of the \
                 base {wanted}. Look who has made it anew; `clawmux cluster rebuild` makes another one out of a \
                 node's store",
                log.name
            )));
        }
    }
    let max_bytes = log.max_bytes;
    if max_bytes > 0 && found.max_bytes != max_bytes {
        tracing::warn!(
            found = found.max_bytes,
            wanted = max_bytes,
            "cluster: the log has another limit than cluster.max_log_bytes: `nats stream edit {}` changes it",
            log.name
        );
    }
    Ok(())
}

/// Makes the log, the blobs and the buckets of a generation. What is there under their names is made anew, where the log has
/// nothing.
///
/// # Errors
/// Why they can't be made.
pub(super) async fn make(
    nats: &Nats,
    subjects: &Subjects,
    settings: &EngineSettings,
    cluster: &ClusterId,
    generation: u64,
) -> Result<(), Unusable> {
    let wanted = wanted(subjects, settings, cluster, generation);
    let [.., log] = &wanted;
    let log = &log.name;
    if let Some(found) = find(nats, log).await? {
        let records = found.cached_info().state.last_sequence;
        if records > 0 {
            return Err(Unusable::refused(format!(
                "the stream {log} has had {records} records, and no base of a cluster goes with it: delete it \
                 (`nats stream rm {log}`), where nothing in it is missed, or take another cluster.name"
            )));
        }
    }
    for config in &wanted {
        remove(nats, &config.name).await?;
        if let Err(error) = nats.jetstream.create_stream(config).await {
            return Err(unmade(config, &one_line(&error)));
        }
    }
    Ok(())
}

/// Makes the stream of the base where it is not there.
///
/// # Errors
/// Why it can't be made or used.
pub(super) async fn make_base(nats: &Nats, names: &Names, settings: &EngineSettings) -> Result<(), Unusable> {
    make_if_missing(nats, &base(names, settings)).await
}

async fn make_if_missing(nats: &Nats, wanted: &Config) -> Result<(), Unusable> {
    if find(nats, &wanted.name).await?.is_none()
        && let Err(error) = nats.jetstream.create_stream(wanted).await
        // Another node may have been faster.
        && find(nats, &wanted.name).await?.is_none()
    {
        return Err(unmade(wanted, &one_line(&error)));
    }
    fitting(nats, wanted).await.map(drop)
}

/// The stream of the base, as it is there; none where it is not.
///
/// # Errors
/// Where it can't be used.
pub(super) async fn look_for_base(
    nats: &Nats,
    names: &Names,
    settings: &EngineSettings,
) -> Result<Option<Stream>, Unusable> {
    let wanted = base(names, settings);
    let found = find(nats, &wanted.name).await?;
    if let Some(found) = &found {
        fits(&found.cached_info().config, &wanted)?;
    }
    Ok(found)
}

/// Removes the log, the blobs and the buckets of a generation, where they are there.
///
/// # Errors
/// Why one can't be removed.
pub(super) async fn remove_all(nats: &Nats, subjects: &Subjects) -> Result<(), Unusable> {
    let (nodes, slots) = (subjects.nodes().stream(), subjects.slots().stream());
    for name in [subjects.log_stream(), subjects.blob_stream(), nodes, slots] {
        remove(nats, &name).await?;
    }
    Ok(())
}

async fn remove(nats: &Nats, name: &str) -> Result<(), Unusable> {
    match nats.jetstream.delete_stream(name).await {
        Ok(_) => Ok(()),
        // It may have been, although the answer is late.
        Err(error) => match find(nats, name).await? {
            None => Ok(()),
            Some(_) => {
                Err(Unusable::away(format!("the stream {name} can't be deleted: {}", one_line(&error))))
            }
        },
    }
}

/// What every stream of a cluster has.
fn common(settings: &EngineSettings) -> Config {
    Config {
        storage: StorageType::File,
        retention: RetentionPolicy::Limits,
        // What is full refuses what is new: nothing is lost to make room.
        discard: DiscardPolicy::New,
        allow_direct: true,
        deny_delete: true,
        num_replicas: settings.replicas,
        ..Config::default()
    }
}

fn base(names: &Names, settings: &EngineSettings) -> Config {
    Config {
        name: names.base_stream(),
        subjects: vec![names.base()],
        description: Some("clawmux: the store that a new node of a cluster begins with".to_owned()),
        max_messages_per_subject: 1,
        ..common(settings)
    }
}

/// The nodes, the slots, the blobs and the log of a generation.
fn wanted(
    subjects: &Subjects,
    settings: &EngineSettings,
    cluster: &ClusterId,
    generation: u64,
) -> [Config; 4] {
    let bucket = |bucket: Bucket, description: &str| Config {
        name: bucket.stream(),
        subjects: vec![bucket.key(">")],
        description: Some(description.to_owned()),
        max_messages_per_subject: 1,
        allow_rollup: true,
        ..common(settings)
    };
    let max_bytes = settings.max_log_bytes.map_or(-1, |most| i64::try_from(most).unwrap_or(i64::MAX));
    let blobs = Config {
        name: subjects.blob_stream(),
        subjects: vec![subjects.blobs()],
        description: Some("clawmux: what is too large for the log of a cluster".to_owned()),
        max_messages_per_subject: 1,
        allow_message_ttl: true,
        max_bytes,
        ..common(settings)
    };
    let log = Config {
        name: subjects.log_stream(),
        subjects: vec![subjects.log()],
        description: Some("clawmux: the log of a cluster".to_owned()),
        allow_atomic_publish: true,
        allow_message_ttl: true,
        max_bytes,
        metadata: HashMap::from([
            (CLUSTER.to_owned(), cluster.to_string()),
            (GENERATION.to_owned(), generation.to_string()),
        ]),
        ..common(settings)
    };
    [
        bucket(subjects.nodes(), "clawmux: the nodes of a cluster"),
        bucket(subjects.slots(), "clawmux: who owns which sessions"),
        blobs,
        log,
    ]
}

/// The settings of a stream that is there and fits.
async fn fitting(nats: &Nats, wanted: &Config) -> Result<Config, Unusable> {
    let Some(found) = find(nats, &wanted.name).await? else {
        return Err(Unusable::refused(format!(
            "the stream {} is gone, which the cluster had: see to the servers' storage. Where it is lost, `clawmux \
             cluster rebuild` makes another one out of a node's store",
            wanted.name
        )));
    };
    let config = found.cached_info().config.clone();
    fits(&config, wanted)?;
    Ok(config)
}

fn fits(found: &Config, wanted: &Config) -> Result<(), Unusable> {
    match misfit(found, wanted) {
        None => Ok(()),
        Some(wrong) => Err(Unusable::refused(format!(
            "the stream {} has {wrong}: change it with `nats stream edit {}`, or take another cluster.name",
            wanted.name, wanted.name
        ))),
    }
}

/// The stream of this name; none where there is none.
///
/// # Errors
/// Where that is not known.
pub(super) async fn find(nats: &Nats, name: &str) -> Result<Option<Stream>, Unusable> {
    match nats.jetstream.get_stream(name).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), GetStreamErrorKind::JetStream(ref why) if why.code() == 404) => {
            Ok(None)
        }
        Err(error) => Err(Unusable::away(format!(
            "the NATS server {} does not say what the stream {name} has: {}. Most of the servers that have it have to \
                 be there",
            nats.client.server_info().server_name,
            one_line(&error)
        ))),
    }
}

fn unmade(wanted: &Config, why: &str) -> Unusable {
    let (name, replicas) = (&wanted.name, wanted.num_replicas);
    let has_too_few =
        ["no suitable peers", "non-clustered", "insufficient"].iter().any(|word| why.contains(word));
    // A server that is only down for the moment is named as offline.
    if has_too_few && !why.contains("offline") {
        return Unusable::refused(format!(
            "the stream {name} needs {replicas} NATS servers that are one cluster and have room: start as \
             many, since of two none may be lost, or see to cluster.replicas ({why})"
        ));
    }
    Unusable {
        is_refused: why.contains("overlap"),
        why: match why.contains("overlap") {
            true => format!(
                "the stream {name} can't be made, since another one has its subjects: delete that, or take \
                 another cluster.name ({why})"
            ),
            false => format!("the stream {name} can't be made: {why}"),
        },
    }
}

/// What of a stream's settings does not do, in words that come after "has".
fn misfit(found: &Config, wanted: &Config) -> Option<String> {
    let is_bucket = wanted.max_messages_per_subject == 1;
    let per_subject = found.max_messages_per_subject.max(0);
    let limit = |value: i64| (value > 0).then_some(value);
    let flags = [
        ("allow_direct", found.allow_direct, true),
        ("allow_atomic", found.allow_atomic_publish, wanted.allow_atomic_publish),
        ("allow_msg_ttl", found.allow_message_ttl, wanted.allow_message_ttl),
        ("deny_delete", found.deny_delete, true),
    ];
    let wrong_flag = flags.into_iter().find(|(_, found, wanted)| *wanted && !found);
    if found.subjects != wanted.subjects {
        Some(format!("the subjects {}, not {}", found.subjects.join(", "), wanted.subjects.join(", ")))
    } else if found.storage != StorageType::File {
        Some("memory as its storage, which a restart of the servers empties, not a file".to_owned())
    } else if found.num_replicas != wanted.num_replicas {
        Some(format!("{} replicas, not {}", found.num_replicas, wanted.num_replicas))
    } else if found.retention != RetentionPolicy::Limits {
        Some(format!("retention {:?}, not limits", found.retention))
    } else if found.discard != DiscardPolicy::New {
        Some("discard old, which loses records to make room, not new".to_owned())
    } else if !found.max_age.is_zero() {
        Some(format!("max_age {} s, which loses what is older, not 0", found.max_age.as_secs()))
    } else if let Some(most) = limit(found.max_messages) {
        Some(format!("max_msgs {most}, not unlimited"))
    } else if per_subject != i64::from(is_bucket) {
        let wanted = if is_bucket { "1" } else { "unlimited" };
        Some(format!("max_msgs_per_subject {per_subject}, not {wanted}"))
    } else if let Some((flag, ..)) = wrong_flag {
        Some(format!("{flag} off, not on"))
    } else if found.no_ack || found.persist_mode == Some(PersistenceMode::Async) {
        Some("acknowledgements before what they are for is stored".to_owned())
    } else if found.sealed || found.mirror.is_some() || found.sources.is_some() {
        Some("another one as its source, or is sealed".to_owned())
    } else if found.subject_transform.is_some() {
        Some("a transform of its subjects".to_owned())
    } else if found.subject_delete_marker_ttl.is_some_and(|ttl| !ttl.is_zero()) {
        Some("subject_delete_marker_ttl, which adds messages that are no records, not none".to_owned())
    } else {
        None
    }
}
