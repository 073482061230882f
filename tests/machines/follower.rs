//! Those who follow a session, each from the last number it saw, on one machine after the other.

use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use super::book;
use super::company::Company;
use super::line::{Line, Stop};
use super::plan::Random;
use super::telling::Telling;

/// How often a follower looks whether all is over.
const LOOK: Duration = Duration::from_secs(1);

/// Follows a session until nothing new is asked and all that was has ended; gives what it was told.
pub async fn follow(company: Rc<Company>, session: usize) -> Telling {
    let mut random = Random::new(company.book.borrow().seed(), &format!("follower of {session}"));
    let mut telling = Telling::default();
    let who = format!("a follower of s{session}");
    let speak = async |line: &mut Line| attempt(&company, session, &mut telling, line).await;
    company.in_each(&who, &mut random, |_| (), speak).await;
    telling
}

async fn attempt(
    company: &Company,
    session: usize,
    telling: &mut Telling,
    line: &mut Line,
) -> Result<(), Stop> {
    let id = attach(company, session, telling.last, line).await?.0;
    let mut frames = Vec::new();
    while !is_over(company, session, telling) {
        // A session in which nothing is said has nothing to tell.
        let Ok(frame) = timeout(LOOK, line.receive()).await else { continue };
        let frame = frame?;
        frames.push(frame.to_string());
        take(company, session, telling, &id, &frame).map_err(|why| {
            let before = frames.len().saturating_sub(40);
            Stop::Wrong(format!("{why}\n{}", frames[before..].join("\n")))
        })?;
    }
    Ok(())
}

/// A session told anew from its start by one machine, up to what it says is the last number.
///
/// # Errors
/// Where it is not told so.
pub async fn tell_anew(company: &Company, session: usize, line: &mut Line) -> Result<Telling, Stop> {
    let mut telling = Telling::default();
    let silent = |stop: Stop, at: u64| Stop::Wrong(format!("s{session}, told anew up to {at}: {stop:?}"));
    let (id, last) = attach(company, session, 0, line).await.map_err(|stop| silent(stop, 0))?;
    while telling.last < last {
        let frame = company.receive(line).await.map_err(|stop| silent(stop, telling.last))?;
        if frame["id"] == *id {
            let taken = take(company, session, &mut telling, &id, &frame);
            taken.map_err(|why| format!("s{session}, told anew: {frame}: {why}"))?;
        }
    }
    Ok(telling)
}

/// Attaches to a session; gives the request's id and the session's last number.
async fn attach(
    company: &Company,
    session: usize,
    after: u64,
    line: &mut Line,
) -> Result<(String, u64), Stop> {
    let mut params = book::session(session);
    params["after_seq"] = json!(after);
    let id = line.ask("session.attach", params).await?;
    let reply = company.receive(line).await?;
    match reply["result"]["seq"].as_u64() {
        Some(head) if head >= after && reply["id"] == *id => Ok((id, head)),
        _ => Err(Stop::Refused(format!("attached after {after}: {reply}"))),
    }
}

fn take(
    company: &Company,
    session: usize,
    telling: &mut Telling,
    id: &str,
    frame: &serde_json::Value,
) -> Result<(), String> {
    if frame["id"] != *id {
        return Err("a frame for nobody".to_owned());
    }
    let book = company.book.borrow();
    telling.take(book.seed(), |_, name| book.is_of(session, name), frame).map(drop)
}

/// Whether everything that was asked in the session has ended, and this telling has it.
fn is_over(company: &Company, session: usize, telling: &Telling) -> bool {
    let book = company.book.borrow();
    let is_told = |prompt: &usize| {
        let prompt = &book.prompts[*prompt];
        // Where a key was used in two sessions, its run is in one of them.
        let is_here = |(run, _): &(String, u64)| telling.runs.iter().any(|known| known.id == *run);
        prompt.told.is_some() && (prompt.sessions.len() > 1 || prompt.accepted.as_ref().is_some_and(is_here))
    };
    company.is_closing.get()
        && book.of_session[session].iter().all(is_told)
        && telling.runs.iter().all(|run| run.story.done)
}
