//! What is looked at before a job is done: of the heartbeat, whether its file says anything and what it
//! has spent today.

use std::future::Future;
use std::io::Read;
use std::path::Path;

use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::provider::meter::day_start;
use clawmux_core::schedule::job::{self, HEARTBEAT, Job};

use super::Scheduler;
use super::firing::{Ready, Saying};
use crate::host::regular_file;
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::store::ReadJobTokens;

/// The heartbeat's file, in the home.
const FILE: &str = "HEARTBEAT.md";

/// So much of it is read, in bytes: more than is shown, so that it is known whether that is all.
const FILE_BYTES_MAX: u64 = job::HEARTBEAT_BYTES_MAX as u64 + 1;

impl Scheduler {
    /// What a job that is due is to say, if anything.
    pub(super) fn get_ready(&self, job: &Job) -> impl Future<Output = Result<Ready, Error>> + use<> {
        let is_heartbeat = job.id.as_str() == HEARTBEAT;
        let (home, job) = (self.setup.home.clone(), job.clone());
        let file = home.join(FILE);
        let (store, most) = (self.setup.store.clone(), self.setup.config.heartbeat_tokens);
        async move {
            if !is_heartbeat {
                return Ok(Ready::Say(None));
            }
            let read = tokio::task::spawn_blocking(move || read(&file)).await;
            let text = match read.unwrap_or_else(|_| Err(ErrorCode::Internal.error("a thread was lost"))) {
                Ok(Some(text)) if job::has_tasks(&text) => text,
                Ok(None) => return Ok(Ready::Skip(format!("there is no {FILE} in {}", home.display()))),
                Ok(Some(_)) => return Ok(Ready::Skip(format!("{FILE} is empty"))),
                Err(error) => return Ok(Ready::Skip(error.message)),
            };
            let mut run_options = RunOptions::default();
            if most > 0 {
                let asked = ReadJobTokens { job: job.id, day: day_start(clock::wall()) };
                let left = most.saturating_sub(ask(&store, asked).await??);
                if left == 0 {
                    return Ok(Ready::Skip(format!("its {most} tokens of today are spent")));
                }
                run_options.max_tokens = Some(u32::try_from(left).unwrap_or(u32::MAX));
            }
            Ok(Ready::Say(Some(Saying { prompt: job::heartbeat_prompt(&text), run_options })))
        }
    }
}

/// The text of the file, where there is one.
fn read(path: &Path) -> Result<Option<String>, Error> {
    let read = || {
        let mut bytes = Vec::new();
        regular_file::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    match read() {
        Ok(text) => Ok(Some(text)),
        Err(error) if std::io::Error::kind(&error) == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ErrorCode::Unavailable.error(format!("{FILE} can't be read: {error}"))),
    }
}
