//! Those who follow: one for each session, each from the last number it saw.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::json;

use crate::line::{Line, Stop};
use crate::lives::Seen;
use crate::record::Record;
use crate::speaker::Company;
use crate::telling::Telling;

/// Follows a session until all its runs have ended.
pub async fn follow(company: Rc<Company>, record: Rc<RefCell<Record>>) {
    let follower = Follower { company: &company, record: &record };
    company.lives.in_each("a follower", async |line| follower.run(line).await).await;
}

struct Follower<'a> {
    company: &'a Company,
    record: &'a RefCell<Record>,
}

impl Follower<'_> {
    async fn run(&self, line: Result<Line, Stop>) -> Result<(), Stop> {
        let mut line = line?;
        let last = self.record.borrow().followed.last;
        let attach = attach(&mut line, self.record, last).await?;
        self.company.lives.saw(Seen::Resumed);
        while !self.is_over() {
            let frame = line.receive().await?;
            let mut record = self.record.borrow_mut();
            record.note(&format!("followed: {frame}"));
            let wrong = |why: String, record: &Record| {
                let Record { account, .. } = record;
                Stop::Wrong(format!("{account}: {frame}: {why}\nframes of its session:\n{}", record.tail()))
            };
            if frame["id"] != *attach {
                return Err(wrong("a frame for nobody".into(), &record));
            }
            let (seed, account) = (record.seed, record.account.clone());
            let ended = record
                .followed
                .take(seed, prompts_of(&account), &frame)
                .map_err(|why| wrong(why, &record))?;
            if let Some(prompt) = ended {
                let story = record.followed.runs[prompt].story.clone();
                let may_interrupt = self.company.may_interrupt;
                record.check_end(prompt, &story, may_interrupt).map_err(|why| wrong(why, &record))?;
            }
            drop(record);
            self.company.bytes.set(self.company.bytes.get() + frame.to_string().len() as u64);
            if let Some(seen) = frame["event"].as_str().and_then(Seen::event) {
                self.company.lives.saw(seen);
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let record = self.record.borrow();
        let runs = &record.followed.runs;
        self.company.is_closing.get()
            && runs.len() == record.prompts.len()
            && runs.iter().all(|run| run.story.done)
    }
}

/// The names of the prompts of an account, in their order.
fn prompts_of(account: &str) -> impl Fn(usize, &str) -> bool {
    move |nth, name| name == format!("{account}.p{nth}")
}

/// Attaches to a session; gives the request's id.
async fn attach(line: &mut Line, record: &RefCell<Record>, after: u64) -> Result<String, Stop> {
    let mut params = record.borrow().session();
    params["after_seq"] = json!(after);
    let id = line.ask("session.attach", params).await?;
    let reply = line.receive().await?;
    match reply["result"]["seq"].as_u64() {
        Some(head) if head >= after && reply["id"] == *id => Ok(id),
        _ => Err(Stop::Refused(format!("attached after {after}: {reply}"))),
    }
}

/// The session told anew from its start, up to its last number.
pub async fn tell_anew(line: &mut Line, record: &RefCell<Record>) -> Result<Telling, Stop> {
    let attach = attach(line, record, 0).await?;
    let (seed, account, last) = {
        let record = record.borrow();
        (record.seed, record.account.clone(), record.followed.last)
    };
    let mut telling = Telling::default();
    while telling.last < last {
        let frame = line.receive().await?;
        if frame["id"] == *attach {
            telling
                .take(seed, prompts_of(&account), &frame)
                .map_err(|why| format!("{account}, told anew: {frame}: {why}"))?;
        }
    }
    Ok(telling)
}
