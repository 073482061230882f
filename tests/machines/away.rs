//! A daemon that was away for long, and a replica that does not have what the others have.

use std::path::Path;

use rusqlite::Connection;

use crate::handover::owns;
use crate::trial::Trial;

/// Stops a daemon, and starts it again after so many answers of the others.
///
/// # Errors
/// Where it does not stop, or does not come back.
pub async fn miss(trial: &Trial, machine: usize, answers: usize) -> Result<(), String> {
    trial.machines.stop(machine).await?;
    let before = trial.answered();
    let enough = async || trial.answered() >= before + answers;
    trial.machines.until("enough is answered meanwhile", enough).await?;
    trial.machines.start(machine).await
}

/// Fills the small disk of a machine until the others own its sessions and have given so many answers, makes room
/// again, and starts its server anew: one whose disk was full takes no part until then. The daemon takes sessions again
/// by itself.
///
/// # Errors
/// Where the others do not go on, or the machine does not come back.
pub async fn full(trial: &Trial, machine: usize, answers: usize) -> Result<(), String> {
    let (machines, disk) = (&trial.machines, trial.small_disk.as_ref().expect("it has one"));
    let (name, other) = (format!("m{machine}"), (machine + 1) % machines.count());
    owns(trial, other, &name, true).await?;
    disk.fill();
    owns(trial, other, &name, false).await?;
    let before = trial.answered();
    let enough = async || trial.answered() >= before + answers;
    machines.until("enough is answered while a disk is full", enough).await?;
    disk.clear();
    if let Some(server) = &machines.of(machine).server {
        server.kill();
        server.start();
    }
    machines.until("all daemons are ready again", async || machines.are_ready().await).await?;
    owns(trial, other, &name, true).await
}

/// Stops a daemon, flips a bit of what its replica says of the records that it had, and starts it again; until the
/// others say that it differs.
///
/// # Errors
/// Where nobody notices.
pub async fn differ(trial: &Trial, machine: usize) -> Result<(), String> {
    let (machines, other) = (&trial.machines, (machine + 1) % trial.machines.count());
    machines.stop(machine).await?;
    flip(&machines.database(machine)).map_err(|error| error.to_string())?;
    machines.of(machine).daemon.start();
    let is_noticed = async || {
        let nodes = machines.ask(other, &["cluster", "nodes"]).await.unwrap_or_default();
        nodes.iter().any(|node| node["agrees"] == false)
    };
    machines.until("the others notice that a replica differs", is_noticed).await
}

fn flip(database: &Path) -> rusqlite::Result<()> {
    let database = Connection::open(database)?;
    let mut digest: Vec<u8> = database.query_row("SELECT digest FROM meta", [], |row| row.get(0))?;
    digest[0] ^= 1;
    database.execute("UPDATE meta SET digest = ?1", [digest]).map(drop)
}
