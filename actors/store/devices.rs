//! Paired devices, as the database keeps them.
//!
//! A row that can't be read is left out, with a word in the log: its device has to be paired anew,
//! which is the safe side, and the others come in.

use std::sync::Arc;

use actix::Message;
use clawmux_core::access::About;
use clawmux_core::access::pairing::{self, Device, Grant};
use clawmux_core::access::token::Use;
use clawmux_core::error::Error;
use clawmux_core::replica::Write;
use clawmux_core::scope::{Role, Scope, Scopes};
use rusqlite::{Row, Transaction, params};
use serde::{Deserialize, Serialize};

use super::change::{Change, MadeBy};
use super::columns::{Columns, time};
use super::failure::{Failure, is_unreadable};
use super::live::Live;
use super::query::Query;
use super::reader::Reader;
use super::writer::Writer;

/// What a changed device counts, in bytes.
const DEVICE_BYTES: usize = 2048;

/// Changes paired devices, all or none. Answered when that will survive the end of the process, or,
/// where `durable`, a power cut.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct WriteDevices {
    /// What changes.
    pub changes: Vec<pairing::Change>,
    /// Whether a power cut must not take it.
    pub durable: bool,
}

/// Asks for all paired devices.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Devices, Error>")]
pub struct ReadDevices;

/// The paired devices.
pub struct Devices {
    /// What their tokens are made of, besides their salts.
    pub secret: Vec<u8>,
    /// They.
    pub devices: Vec<Device>,
}

impl Change for WriteDevices {
    fn bytes(&self) -> usize {
        self.changes.len() * DEVICE_BYTES
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::Devices(self.changes.clone()))
    }

    fn is_durable(&self, _: &Writer) -> bool {
        self.durable
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        for change in &self.changes {
            match change {
                pairing::Change::Put(device) => writer.put_device(device)?,
                pairing::Change::Remove(id) => {
                    writer.cached("DELETE FROM device_grants WHERE device = ?")?.execute([&**id])?;
                    writer.cached("DELETE FROM devices WHERE device = ?")?.execute([&**id])?;
                }
                pairing::Change::Seen(id, role, Use { at, origin }) => {
                    writer
                        .cached(
                            "UPDATE device_grants SET used = ?3, origin = ?4
                             WHERE device = ?1 AND role = ?2 AND (used IS NULL OR used <= ?3)",
                        )?
                        .execute(params![&**id, role.name(), time(*at), origin.to_string()])?;
                }
            }
        }
        Ok(())
    }
}

impl Query for ReadDevices {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let secret = tx.query_row("SELECT device_secret FROM meta", [], |row| row.get(0))?;
            let mut statement = tx.prepare(
                "SELECT device, public_key, about, peer, credential, created, approved FROM devices",
            )?;
            let mut devices = Vec::new();
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let id: String = row.get(0)?;
                match device(tx, row, &id) {
                    Ok(device) => devices.push(device),
                    Err(Failure::Database(error)) if !is_unreadable(&error) => {
                        return Err(Failure::Database(error));
                    }
                    Err(_) => tracing::warn!(device = %id, "a paired device can't be read: pair it anew"),
                }
            }
            Ok(Devices { secret, devices })
        })
    }
}

/// What a device says of itself.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Said {
    client_id: String,
    version: String,
    mode: String,
    platform: String,
    device_family: Option<String>,
    model_identifier: Option<String>,
    display_name: Option<String>,
}

impl Writer {
    /// Of what two daemons of a cluster decide of a device at the same time, without knowing of each other, the roles of
    /// both hold, and of a role what comes later; but a token that was revoked stays so.
    fn put_device(&mut self, device: &Device) -> rusqlite::Result<()> {
        let About { client_id, version, mode, platform, .. } = device.about.clone();
        let said = Said {
            client_id,
            version,
            mode,
            platform,
            device_family: device.about.device_family.clone(),
            model_identifier: device.about.model_identifier.clone(),
            display_name: device.about.display_name.clone(),
        };
        let about = serde_json::to_string(&said).unwrap_or_default();
        self.cached(
            "DELETE FROM device_grants WHERE device = ?1
                AND EXISTS (SELECT 1 FROM devices WHERE device = ?1 AND credential <> ?2)",
        )?
        .execute([&*device.id, &*device.credential])?;
        self.cached(
            "INSERT INTO devices (device, public_key, about, peer, credential, created, approved)
             VALUES (?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (device) DO UPDATE SET public_key = excluded.public_key, about = excluded.about,
                peer = excluded.peer, credential = excluded.credential, created = excluded.created,
                approved = excluded.approved",
        )?
        .execute(params![
            &*device.id,
            device.public_key,
            about,
            device.peer.to_string(),
            &*device.credential,
            time(device.created),
            time(device.approved),
        ])?;
        for grant in &device.grants {
            let scopes: Vec<_> =
                Scope::ALL.into_iter().filter(|scope| grant.scopes.allows(*scope)).map(Scope::name).collect();
            self.cached(
                "INSERT INTO device_grants (device, role, scopes, salt, issued, rotated, revoked, used, origin)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
                 ON CONFLICT (device, role) DO UPDATE SET scopes = excluded.scopes, salt = excluded.salt,
                    issued = excluded.issued, rotated = excluded.rotated, used = excluded.used,
                    origin = excluded.origin,
                    revoked = coalesce(iif(salt = excluded.salt, revoked, NULL), excluded.revoked)",
            )?
            .execute(params![
                &*device.id,
                grant.role.name(),
                scopes.join(" "),
                grant.salt,
                time(grant.issued),
                grant.rotated.map(time),
                grant.revoked.map(time),
                grant.used.map(time),
                grant.origin.map(|origin| origin.to_string()),
            ])?;
        }
        Ok(())
    }
}

fn device(tx: &Transaction<'_>, row: &Row<'_>, id: &str) -> Result<Device, Failure> {
    let said: Said = serde_json::from_str(&row.get::<_, String>(2)?).unwrap_or_default();
    let peer: String = row.get(3)?;
    let grants = tx
        .prepare_cached(
            "SELECT role, scopes, salt, issued, rotated, revoked, used, origin FROM device_grants
             WHERE device = ? ORDER BY issued, role DESC",
        )?
        .query_map([id], grant)?
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Device {
        id: id.into(),
        public_key: row.get(1)?,
        about: About {
            client_id: said.client_id,
            version: said.version,
            mode: said.mode,
            platform: said.platform,
            device_family: said.device_family,
            model_identifier: said.model_identifier,
            display_name: said.display_name,
            ..About::default()
        },
        peer: peer.parse().unwrap_or(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)),
        credential: Arc::from(row.get::<_, String>(4)?),
        created: row.at_if_any(5)?.unwrap_or_default(),
        approved: row.at_if_any(6)?.unwrap_or_default(),
        grants: grants.into_iter().flatten().collect(),
    })
}

/// None for a role of a later version.
fn grant(row: &Row<'_>) -> rusqlite::Result<Option<Grant>> {
    let Some(role) = Role::from_name(&row.get::<_, String>(0)?) else { return Ok(None) };
    let names: String = row.get(1)?;
    let named = |name: &str| Scope::ALL.into_iter().find(|scope| scope.name() == name);
    let scopes: Vec<Scope> = names.split(' ').filter_map(named).collect();
    let origin: Option<String> = row.get(7)?;
    Ok(Some(Grant {
        role,
        scopes: Scopes::of(&scopes),
        salt: row.get(2)?,
        issued: row.at_if_any(3)?.unwrap_or_default(),
        rotated: row.at_if_any(4)?,
        revoked: row.at_if_any(5)?,
        used: row.at_if_any(6)?,
        origin: origin.and_then(|origin| origin.parse().ok()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use clawmux_core::access::pairing::Change;
    use clawmux_core::time::Timestamp;

    fn device(seed: u8) -> Device {
        let grant = |role, scopes, revoked| Grant {
            role,
            scopes,
            salt: [seed; 16],
            issued: Timestamp::from_millis(5),
            rotated: None,
            revoked,
            used: Some(Timestamp::from_millis(9)),
            origin: Some([10, 0, 0, seed].into()),
        };
        Device {
            id: format!("device-{seed}").into(),
            public_key: [seed; 32],
            about: About {
                client_id: "cli".into(),
                platform: "İ🎈".into(),
                display_name: Some("it".into()),
                ..About::default()
            },
            peer: "fe80::1".parse().unwrap(),
            credential: "ci".into(),
            created: Timestamp::from_millis(1),
            approved: Timestamp::from_millis(2),
            grants: vec![
                grant(Role::Operator, Scopes::USER, None),
                grant(Role::Node, Scopes::NONE, Some(Timestamp::from_millis(7))),
            ],
        }
    }

    #[actix::test]
    async fn devices_and_what_their_tokens_are_made_of_survive_a_new_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        let store = Store::start(&path).await.unwrap();
        let none = store.send(ReadDevices).await.unwrap().unwrap();
        assert!(none.secret.len() == 32 && none.secret != [0; 32] && none.devices.is_empty());
        let write = |changes| WriteDevices { changes, durable: true };
        store
            .send(write(vec![Change::Put(device(1)), Change::Put(device(2)), Change::Put(device(3))]))
            .await
            .unwrap()
            .unwrap();
        let other = Device { credential: "other".into(), grants: Vec::new(), ..device(2) };
        let changes = vec![Change::Remove("device-3".into()), Change::Put(other.clone())];
        store.send(write(changes)).await.unwrap().unwrap();
        store.send(crate::store::Stop).await.unwrap().unwrap();

        let store = Store::start(&path).await.unwrap();
        let some = store.send(ReadDevices).await.unwrap().unwrap();
        assert_eq!(some.secret, none.secret);
        assert_eq!(some.devices, [device(1), other]);
        store.send(crate::store::Stop).await.unwrap().unwrap();

        let db = rusqlite::Connection::open(&path).unwrap();
        db.execute_batch("UPDATE devices SET public_key = x'00' WHERE device = 'device-1'").unwrap();
        drop(db);
        let store = Store::start(&path).await.unwrap();
        let left = store.send(ReadDevices).await.unwrap().unwrap();
        assert_eq!(left.devices.len(), 1, "the other one: {:?}", left.devices);
        // Another store has another secret.
        let second = Store::start(folder.path().join("second.db")).await.unwrap();
        assert_ne!(second.send(ReadDevices).await.unwrap().unwrap().secret, some.secret);
    }
}
