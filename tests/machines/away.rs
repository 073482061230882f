//! A daemon that was away for long, and a replica that is damaged.

use crate::trial::Trial;

/// Stops a daemon, and starts it again after so many prompts more.
///
/// # Errors
/// Where it does not stop, or does not come back.
pub async fn miss(trial: &Trial, machine: usize, prompts: usize) -> Result<(), String> {
    trial.machines.stop(machine).await?;
    let before = trial.answered();
    let enough = async || trial.answered() >= before + prompts;
    trial.machines.until("enough is answered meanwhile", enough).await?;
    trial.machines.start(machine).await
}
