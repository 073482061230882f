//! The log and the buckets: made where they are not there, else looked at, since an operator may have made or
//! changed them.
//!
//! Settings that a record could be lost by are refused. The limit of the log's bytes is only compared and
//! named: it may be changed while the cluster runs, and not every node is started anew for that.

use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType, Stream,
};

use super::EngineSettings;
use super::subjects::{Bucket, Subjects};
use crate::nats::{Nats, Unusable, one_line};

/// Looks for the log and the buckets, and makes those that are not there.
///
/// # Errors
/// Why they can't be used.
pub(super) async fn open(
    nats: &Nats,
    subjects: &Subjects,
    settings: &EngineSettings,
) -> Result<(), Unusable> {
    let base = Config {
        storage: StorageType::File,
        retention: RetentionPolicy::Limits,
        // What is full refuses what is new: nothing is lost to make room.
        discard: DiscardPolicy::New,
        allow_direct: true,
        deny_delete: true,
        num_replicas: settings.replicas,
        ..Config::default()
    };
    let max_bytes = settings.max_log_bytes.map_or(-1, |most| i64::try_from(most).unwrap_or(i64::MAX));
    let log = Config {
        name: subjects.log_stream(),
        subjects: vec![subjects.log()],
        description: Some("clawmux: the log of a cluster".to_owned()),
        allow_atomic_publish: true,
        allow_message_ttl: true,
        max_bytes,
        ..base.clone()
    };
    let bucket = |bucket: Bucket, description: &str| Config {
        name: bucket.stream(),
        subjects: vec![bucket.key(">")],
        description: Some(description.to_owned()),
        max_messages_per_subject: 1,
        allow_rollup: true,
        ..base.clone()
    };
    one(nats, &bucket(subjects.nodes(), "clawmux: the nodes of a cluster")).await?;
    one(nats, &bucket(subjects.slots(), "clawmux: who owns which sessions")).await?;
    let found = one(nats, &log).await?.max_bytes;
    if max_bytes > 0 && found != max_bytes {
        tracing::warn!(
            found,
            wanted = max_bytes,
            "cluster: the log has another limit than cluster.max_log_bytes: `nats stream edit {}` changes it",
            log.name
        );
    }
    Ok(())
}

/// The settings of the stream, which is made where it is not there.
async fn one(nats: &Nats, wanted: &Config) -> Result<Config, Unusable> {
    let found = match find(nats, &wanted.name).await? {
        Some(found) => found,
        None => match nats.jetstream.create_stream(wanted).await {
            Ok(made) => made,
            // Another node may have been faster, and have other settings.
            Err(error) => match find(nats, &wanted.name).await? {
                Some(found) => found,
                None => return Err(unmade(wanted, &one_line(&error))),
            },
        },
    };
    let config = found.cached_info().config.clone();
    match misfit(&config, wanted) {
        None => Ok(config),
        Some(wrong) => Err(Unusable::refused(format!(
            "the stream {} has {wrong}: change it with `nats stream edit {}`, or take another cluster.name",
            wanted.name, wanted.name
        ))),
    }
}

async fn find(nats: &Nats, name: &str) -> Result<Option<Stream>, Unusable> {
    match nats.jetstream.get_stream(name).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), GetStreamErrorKind::JetStream(ref why) if why.code() == 404) => {
            Ok(None)
        }
        Err(error) => {
            Err(Unusable::away(format!("the stream {name} can't be looked at: {}", one_line(&error))))
        }
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
    } else {
        None
    }
}
