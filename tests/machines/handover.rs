//! One daemon after the other hands its sessions over, stops, and comes back with nothing missing, while clients
//! go on.

use std::time::Duration;

use serde_json::Value;

use crate::trial::Trial;

/// Restarts all daemons, one after the other, and has each of them own something again.
///
/// # Errors
/// Where one does not hand over, stop, or come back.
pub async fn roll(trial: &Trial) -> Result<(), String> {
    let machines = &trial.machines;
    for machine in 0..machines.count() {
        let (name, other) = (format!("m{machine}"), (machine + 1) % machines.count());
        owns(trial, other, &name, true).await?;
        machines.ask(other, &["cluster", "handover", &name]).await?;
        owns(trial, other, &name, false).await?;
        machines.stop(machine).await?;
        machines.start(machine).await?;
        owns(trial, other, &name, true).await?;
    }
    Ok(())
}

/// Waits until a node owns some sessions, or none, as another machine sees it.
///
/// # Errors
/// Where it is not so for a minute.
pub async fn owns(trial: &Trial, seen_by: usize, name: &str, some: bool) -> Result<(), String> {
    let is_so = async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let Ok(slots) = trial.machines.ask(seen_by, &["cluster", "slots"]).await else { return false };
        let of_it = slots.iter().filter(|slot| slot["owner"] == *name).count();
        let unowned = slots.iter().filter(|slot| slot["owner"] == Value::Null).count();
        unowned == 0 && (of_it > 0) == some
    };
    trial.machines.until(&format!("{name} owns some sessions: {some}"), is_so).await
}
