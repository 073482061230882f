//! Jobs and their firings, as the database keeps them.
//!
//! A firing is known by its job and the time it was due, and is entered once: whoever enters it again is
//! told so, and nothing of what came with it is done. A row that can't be read is left out, with a word
//! in the log.

use std::time::Duration;

use actix::Message;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{JobId, RunId, SessionKey};
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::prompt::thinking::Thinking;
use clawmux_core::provider::usage::Usage;
use clawmux_core::replica::Write;
use clawmux_core::schedule::job::{FIRINGS_MAX, Firing, FiringState, Job, JobWrite, Task};
use clawmux_core::schedule::{Misfire, Plan, Schedule};
use clawmux_core::time::Timestamp;
use rusqlite::{OptionalExtension, Row, params};

use super::change::{Change, MadeBy};
use super::columns::{Columns, integer, readable, time, unreadable};
use super::failure::Failure;
use super::live::Live;
use super::query::Query;
use super::reader::Reader;
use super::writer::Writer;

/// Writes down what changed of jobs, durably, all of it or nothing.
///
/// Errors: `Conflict` where a firing is there already; else as [`Append`](super::Append)'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct WriteJobs(pub Vec<JobWrite>);

/// Asks for all jobs.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<KeptJobs, Error>")]
pub struct ReadJobs;

/// The jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptJobs {
    /// They.
    pub jobs: Vec<Job>,
    /// The firings that are not over, the earliest begun first.
    pub open: Vec<Firing>,
    /// The latest firing of each job that is over.
    pub last: Vec<Firing>,
}

/// Asks for the latest firings of some jobs, the latest begun first.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<Firing>, Error>")]
pub struct ReadFirings {
    /// Of these.
    pub jobs: Vec<JobId>,
    /// At most so many.
    pub limit: usize,
}

/// Asks how many tokens a job has spent on a day.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<u64, Error>")]
pub struct ReadJobTokens {
    /// Which.
    pub job: JobId,
    /// When the day began (UTC).
    pub day: Timestamp,
}

impl Change for WriteJobs {
    fn bytes(&self) -> usize {
        self.0.iter().map(JobWrite::bytes).sum()
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::Jobs(self.0.clone()))
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        // Looked at first: what is refused leaves nothing behind.
        for change in &self.0 {
            if let JobWrite::Enter(firing) = change {
                let there = "SELECT 1 FROM firings WHERE job = ? AND scheduled = ?";
                let there = writer
                    .cached(there)?
                    .query_row(params![firing.job.as_str(), time(firing.scheduled)], |_| Ok(()))
                    .optional()?;
                if there.is_some() {
                    let why = format!("job {} was begun at this time before", firing.job);
                    return Err(Failure::Refused(ErrorCode::Conflict.error(why)));
                }
                let there = "SELECT 1 FROM jobs WHERE job = ?";
                let there = writer.cached(there)?.query_row([firing.job.as_str()], |_| Ok(())).optional()?;
                if there.is_none() && self.puts(&firing.job).is_some() {
                    let why = format!("job {} was removed meanwhile", firing.job);
                    return Err(Failure::Refused(ErrorCode::NotFound.error(why)));
                }
            }
        }
        for change in &self.0 {
            match change {
                JobWrite::Put(job) if self.enters(&job.id) => writer.settle_job(job)?,
                JobWrite::Put(job) => writer.put_job(job)?,
                JobWrite::Remove(job) => {
                    writer.cached("DELETE FROM jobs WHERE job = ?")?.execute([job.as_str()])?;
                    writer.cached("DELETE FROM firings WHERE job = ?")?.execute([job.as_str()])?;
                    writer.cached("DELETE FROM job_days WHERE job = ?")?.execute([job.as_str()])?;
                }
                JobWrite::Enter(firing) => {
                    writer.cached(
                        "INSERT INTO firings (job, scheduled, manual, begun, state) VALUES (?, ?, ?, ?, '')",
                    )?
                    .execute(params![
                        firing.job.as_str(),
                        time(firing.scheduled),
                        firing.is_manual,
                        time(firing.begun)
                    ])?;
                    writer.settle_firing(firing)?;
                }
                JobWrite::Settle(firing) => writer.settle_firing(firing)?,
            }
        }
        Ok(())
    }
}

impl WriteJobs {
    fn puts(&self, id: &JobId) -> Option<&Job> {
        self.0.iter().find_map(|change| match change {
            JobWrite::Put(job) if job.id == *id => Some(&**job),
            _ => None,
        })
    }

    fn enters(&self, id: &JobId) -> bool {
        self.0.iter().any(|change| matches!(change, JobWrite::Enter(firing) if firing.job == *id))
    }
}

impl Query for ReadJobs {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            Ok(KeptJobs {
                jobs: readable(tx, "jobs", "SELECT * FROM jobs", [], job)?,
                open: readable(
                    tx,
                    "jobs",
                    "SELECT * FROM firings WHERE ended IS NULL ORDER BY begun",
                    [],
                    firing,
                )?,
                last: readable(
                    tx,
                    "jobs",
                    "SELECT * FROM firings f WHERE ended IS NOT NULL AND scheduled = (
                         SELECT max(scheduled) FROM firings l WHERE l.job = f.job AND l.ended IS NOT NULL)",
                    [],
                    firing,
                )?,
            })
        })
    }
}

impl Query for ReadFirings {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let mut all = Vec::new();
            for job in &self.jobs {
                let limit = integer(self.limit);
                let sql = "SELECT * FROM firings WHERE job = ? ORDER BY scheduled DESC LIMIT ?";
                all.extend(readable(tx, "jobs", sql, params![job.as_str(), limit], firing)?);
            }
            all.sort_by_key(|firing| std::cmp::Reverse(firing.scheduled));
            all.truncate(self.limit);
            Ok(all)
        })
    }
}

impl Query for ReadJobTokens {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let day = integer(self.day.as_millis() / super::DAY_MS);
            let asked = params![self.job.as_str(), day];
            let sql = "SELECT tokens FROM job_days WHERE job = ? AND day = ?";
            Ok(tx.query_row(sql, asked, |row| row.number(0)).optional()?.unwrap_or(0))
        })
    }
}

impl Writer {
    /// What a firing changes of its job. The rest may have been changed by another daemon of a cluster meanwhile.
    fn settle_job(&mut self, job: &Job) -> rusqlite::Result<()> {
        self.cached("UPDATE jobs SET settled = ?2, enabled = enabled AND ?3 WHERE job = ?1")?
            .execute(params![job.id.as_str(), time(job.settled), job.is_enabled])?;
        Ok(())
    }

    fn put_job(&mut self, job: &Job) -> rusqlite::Result<()> {
        let millis = |span: Duration| integer(span.as_millis());
        let (kind, first, every, expression, zone) = match job.schedule.plan() {
            Plan::At(at) => ("at", Some(time(at)), None, None, None),
            Plan::Every { every, anchor } => ("every", anchor.map(time), Some(millis(every)), None, None),
            Plan::Cron { expression, zone } => ("cron", None, None, Some(expression), zone),
        };
        let Task { session, prompt, run_options, result_to } = &job.task;
        self.cached(
            "INSERT OR REPLACE INTO jobs (job, owner, name, description, enabled, kind, first, every, expression,
                 zone, session, prompt, model, thinking, max_tokens, result_to, misfire, once, note, created,
                 updated, settled)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            job.id.as_str(),
            job.owner.as_str(),
            job.name,
            job.description,
            job.is_enabled,
            kind,
            first,
            every,
            expression,
            zone,
            session.as_str(),
            prompt,
            run_options.model,
            run_options.thinking.map(Thinking::name),
            run_options.max_tokens,
            result_to.as_ref().map(SessionKey::as_str),
            job.misfire.name(),
            job.is_deleted_after,
            job.note,
            time(job.created),
            time(job.updated),
            time(job.settled),
        ])?;
        Ok(())
    }

    fn settle_firing(&mut self, firing: &Firing) -> rusqlite::Result<()> {
        let (code, why) = match &firing.state {
            FiringState::Running | FiringState::Done => (None, None),
            FiringState::Failed(error) => (Some(error.code.name()), Some(error.message.as_str())),
            FiringState::Skipped(why) => (None, Some(why.as_str())),
        };
        let (job, scheduled) = (firing.job.as_str(), time(firing.scheduled));
        let Usage { input_tokens, output_tokens, .. } = firing.usage;
        let changed = self
            .cached(
                "UPDATE firings SET ended = ?3, state = ?4, code = ?5, why = ?6, missed = ?7, run = ?8, text = ?9,
                     input_tokens = ?10, output_tokens = ?11
                 WHERE job = ?1 AND scheduled = ?2 AND ended IS NULL",
            )?
            .execute(params![
                job,
                scheduled,
                firing.ended.map(time),
                firing.state.name(),
                code,
                why,
                integer(firing.missed),
                firing.run.as_ref().map(RunId::as_str),
                firing.text,
                integer(input_tokens),
                integer(output_tokens),
            ])?;
        let Some(ended) = firing.ended.filter(|_| changed > 0) else { return Ok(()) };
        let tokens = input_tokens.saturating_add(output_tokens);
        if tokens > 0 {
            let day = integer(ended.as_millis() / super::DAY_MS);
            self.cached(
                "INSERT INTO job_days (job, day, tokens) VALUES (?1, ?2, ?3)
                 ON CONFLICT (job, day) DO UPDATE SET tokens = tokens + excluded.tokens",
            )?
            .execute(params![job, day, integer(tokens)])?;
            self.cached("DELETE FROM job_days WHERE job = ? AND day < ?")?.execute(params![job, day - 1])?;
        }
        self.cached(
            // Those of a clock that was ahead are not later than what was done since.
            "DELETE FROM firings WHERE job = ?1 AND ended IS NOT NULL AND scheduled NOT IN (
                 SELECT scheduled FROM firings WHERE job = ?1
                 ORDER BY scheduled > ?3, scheduled DESC LIMIT ?2)",
        )?
        .execute(params![
            job,
            integer(FIRINGS_MAX as u64),
            integer(ended.as_millis() + super::DAY_MS)
        ])?;
        Ok(())
    }
}

fn job(row: &Row<'_>) -> Result<Job, Failure> {
    let kind: String = row.get("kind")?;
    let (first, every) = (row.at_if_any("first")?, row.at_if_any("every")?);
    let plan = match kind.as_str() {
        "at" => Plan::At(first.unwrap_or_default()),
        "every" => {
            Plan::Every { every: Duration::from_millis(every.unwrap_or_default().as_millis()), anchor: first }
        }
        "cron" => Plan::Cron {
            expression: row.get::<_, Option<String>>("expression")?.unwrap_or_default(),
            zone: row.get("zone")?,
        },
        other => return Err(unreadable(format_args!("a job is {other:?}"))),
    };
    let created = row.at("created")?;
    let schedule = Schedule::new(&plan, created, "UTC")?;
    let misfire: String = row.get("misfire")?;
    let Some(misfire) = Misfire::from_name(&misfire) else {
        return Err(unreadable(format_args!("a job makes up for what it missed by {misfire:?}")));
    };
    let thinking: Option<String> = row.get("thinking")?;
    let run_options = RunOptions {
        thinking: thinking.and_then(|name| Thinking::from_name(&name)),
        model: row.get("model")?,
        max_tokens: row.get("max_tokens")?,
        // Only the built-in jobs have one, which is known.
        lane: None,
        ..RunOptions::default()
    };
    Ok(Job {
        id: row.id("job")?,
        name: row.get("name")?,
        description: row.get("description")?,
        owner: row.owner("owner")?,
        is_enabled: row.get("enabled")?,
        schedule,
        task: Task {
            session: row.session("session")?,
            prompt: row.get("prompt")?,
            run_options,
            result_to: row.session_if_any("result_to")?,
        },
        misfire,
        is_deleted_after: row.get("once")?,
        note: row.get("note")?,
        created,
        updated: row.at("updated")?,
        settled: row.at("settled")?,
    })
}

fn firing(row: &Row<'_>) -> Result<Firing, Failure> {
    let name: String = row.get("state")?;
    let (code, why): (Option<String>, Option<String>) = (row.get("code")?, row.get("why")?);
    let why = why.unwrap_or_default();
    let state = match name.as_str() {
        "running" => FiringState::Running,
        "ok" => FiringState::Done,
        "error" => {
            let code = code.and_then(|code| ErrorCode::from_name(&code)).unwrap_or(ErrorCode::Internal);
            FiringState::Failed(code.error(why))
        }
        "skipped" => FiringState::Skipped(why),
        other => return Err(unreadable(format_args!("a firing is {other:?}"))),
    };
    Ok(Firing {
        job: row.id("job")?,
        scheduled: row.at("scheduled")?,
        is_manual: row.get("manual")?,
        begun: row.at("begun")?,
        ended: row.at_if_any("ended")?,
        state,
        missed: row.number("missed")?,
        run: row.get::<_, Option<String>>("run")?.map(RunId::from),
        text: row.get("text")?,
        usage: row.usage("input_tokens", "output_tokens")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use clawmux_core::ids::Owner;
    use clawmux_core::schedule::job::{NewJob, Order, Place};

    const DAY: u64 = 24 * 60 * 60 * 1000;
    const NOW: Timestamp = Timestamp::from_millis(20_000 * DAY);

    fn job(id: &str, plan: Plan) -> Job {
        let new = NewJob {
            name: "water".into(),
            description: Some("the herons".into()),
            is_enabled: true,
            plan,
            order: Order {
                place: Place::Own("main".into()),
                prompt: "water 🎈".into(),
                run_options: RunOptions {
                    thinking: Some(Thinking::Low),
                    model: Some("a/b".into()),
                    max_tokens: Some(7),
                    lane: None,
                    ..RunOptions::default()
                },
                result_to: Some(SessionKey::parse("main:cli:ada:main").unwrap()),
            },
            misfire: Misfire::All(3),
            is_deleted_after: true,
            note: Some("{}".into()),
        };
        Job::new(new, id.into(), Owner::Credential("ada".into()), NOW, "Europe/Berlin").unwrap()
    }

    fn firing(job: &str, second: u64) -> Firing {
        let scheduled = NOW.after(Duration::from_secs(second));
        Firing {
            job: job.into(),
            scheduled,
            is_manual: second.is_multiple_of(2),
            begun: scheduled.after(Duration::from_millis(3)),
            ended: None,
            state: FiringState::Running,
            missed: 5,
            run: None,
            text: None,
            usage: Usage::default(),
        }
    }

    fn over(firing: Firing, state: FiringState) -> Firing {
        let ended = Some(firing.begun.after(Duration::from_millis(9)));
        let usage = Usage::new(3, 4);
        Firing { ended, state, run: Some("r".into()), text: Some("done".into()), usage, ..firing }
    }

    async fn write(store: &actix::Addr<Store>, changes: Vec<JobWrite>) -> Result<(), Error> {
        store.send(WriteJobs(changes)).await.unwrap()
    }

    fn enter(firing: &Firing) -> JobWrite {
        JobWrite::Enter(Box::new(firing.clone()))
    }

    fn settle(firing: &Firing) -> JobWrite {
        JobWrite::Settle(Box::new(firing.clone()))
    }

    #[actix::test]
    async fn jobs_and_firings_survive_a_new_start_and_a_firing_is_entered_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        let store = Store::start(&path).await.unwrap();
        let cron = Plan::Cron { expression: "30 2 * * 1".into(), zone: None };
        let every = Plan::Every { every: Duration::from_millis(90_500), anchor: None };
        let jobs = [job("a", cron), job("b", every), job("c", Plan::At(NOW.after(Duration::from_secs(5))))];
        let put = |job: &Job| JobWrite::Put(Box::new(job.clone()));
        write(&store, jobs.iter().map(put).collect()).await.unwrap();
        let (one, other) = (firing("a", 1), firing("a", 2));
        write(&store, vec![enter(&one)]).await.unwrap();
        // Nothing of what comes with a firing that is there is done.
        let renamed = Job { name: "renamed".into(), ..jobs[0].clone() };
        let refused = write(&store, vec![put(&renamed), enter(&one)]).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Conflict);
        write(&store, vec![enter(&other)]).await.unwrap();
        let failed = FiringState::Failed(ErrorCode::Provider.error("it answered 500"));
        let done = over(one, failed);
        write(&store, vec![settle(&done)]).await.unwrap();
        let skipped = Firing {
            ended: Some(NOW.after(Duration::from_secs(3))),
            state: FiringState::Skipped("the file is empty".into()),
            ..firing("b", 3)
        };
        write(&store, vec![enter(&skipped)]).await.unwrap();
        store.send(crate::store::Stop).await.unwrap().unwrap();

        let store = Store::start(&path).await.unwrap();
        let kept = store.send(ReadJobs).await.unwrap().unwrap();
        assert_eq!(kept.jobs, jobs);
        assert_eq!(kept.open, std::slice::from_ref(&other));
        assert_eq!(kept.last, [done.clone(), skipped]);
        let asked = ReadFirings { jobs: vec!["a".into()], limit: 9 };
        assert_eq!(store.send(asked).await.unwrap().unwrap(), [other, done]);
        write(&store, vec![JobWrite::Remove("a".into())]).await.unwrap();
        let kept = store.send(ReadJobs).await.unwrap().unwrap();
        assert_eq!((kept.jobs.len(), kept.open.len(), kept.last.len()), (2, 0, 1));
    }

    #[actix::test]
    async fn old_firings_are_forgotten_and_what_they_cost_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::start(folder.path().join("clawmux.db")).await.unwrap();
        let many = FIRINGS_MAX as u64 + 30;
        for second in 0..many {
            let begun = firing("a", second);
            let done = over(begun.clone(), FiringState::Done);
            // Settled twice, counted once.
            write(&store, vec![enter(&begun), settle(&done), settle(&done)]).await.unwrap();
        }
        let asked = ReadFirings { jobs: vec!["a".into(), "z".into()], limit: 1000 };
        let kept = store.send(asked).await.unwrap().unwrap();
        assert_eq!(kept.len(), FIRINGS_MAX);
        assert_eq!(kept[0].scheduled, NOW.after(Duration::from_secs(many - 1)), "the latest first");
        let tokens = |day| {
            let asked = ReadJobTokens { job: "a".into(), day };
            let store = store.clone();
            async move { store.send(asked).await.unwrap().unwrap() }
        };
        assert_eq!(tokens(NOW).await, many * 7);
        assert_eq!(tokens(NOW.after(Duration::from_secs(86_400))).await, 0);
    }
}
