//! Those who ask: one for each session, one prompt after the other, each until its end was told, on whichever
//! machine. Now and then somebody else asks for the same, with the same key, in another session.

use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::join;
use tokio::time::sleep;

use super::company::Company;
use super::line::{Line, Stop};
use super::plan::Random;
use super::story::Story;

/// Speaks in a session until nothing new is to be asked.
pub async fn speak(company: Rc<Company>, session: usize) {
    let mut random = Random::new(company.book.borrow().seed(), &format!("speaker of {session}"));
    let mut second = Random::new(company.book.borrow().seed(), &format!("second speaker of {session}"));
    while !company.is_closing.get() {
        sleep(Duration::from_millis(random.range(0, company.pause_max_ms.get()))).await;
        let (prompt, sessions) = {
            let mut book = company.book.borrow_mut();
            let prompt = book.think(session);
            (prompt, book.prompts[prompt].sessions.clone())
        };
        match *sessions {
            [one, other] => {
                let asked = ask(&company, prompt, one, &mut random);
                join(asked, ask(&company, prompt, other, &mut second)).await;
            }
            _ => ask(&company, prompt, session, &mut random).await,
        }
    }
}

/// Asks a prompt in a session, again and again until its end is told.
pub async fn ask(company: &Company, prompt: usize, session: usize, random: &mut Random) {
    let note = |what: &str| company.book.borrow_mut().prompts[prompt].last = what.to_owned();
    let who = company.book.borrow().prompts[prompt].name.clone();
    let once = async |line: &mut Line| attempt(company, prompt, session, line).await;
    company.in_each(&who, random, note, once).await;
}

/// Asks it over one connection.
async fn attempt(company: &Company, prompt: usize, session: usize, line: &mut Line) -> Result<(), Stop> {
    let (request, script) = {
        let book = company.book.borrow();
        (book.request(prompt, session), book.prompts[prompt].script.clone())
    };
    let id = line.ask("chat.send", request).await?;
    let mut story = Story::default();
    let mut frames = Vec::new();
    let mut is_accepted = false;
    loop {
        let since = Instant::now();
        let frame = company.receive(line).await?;
        frames.push(frame.to_string());
        let wrong = |why: String| Stop::Wrong(format!("{why}\n{}", frames.join("\n")));
        if frame["id"] != *id {
            return Err(wrong("a frame for nobody".to_owned()));
        }
        if let Some(error) = frame["error"].as_str() {
            return Err(Stop::Refused(error.to_owned()));
        }
        company.book.borrow_mut().paused(since.elapsed());
        let (event, data) = (frame["event"].as_str().unwrap_or_default(), &frame["data"]);
        if is_accepted {
            story.take(&script, event, data).map_err(wrong)?;
            if story.done {
                return company.book.borrow_mut().tell(prompt, story).map_err(wrong);
            }
            continue;
        }
        let ("accepted", Some(run), Some(seq)) = (event, data["run"].as_str(), data["seq"].as_u64()) else {
            return Err(wrong("it was not accepted".to_owned()));
        };
        company.book.borrow_mut().accept(prompt, run, seq).map_err(wrong)?;
        is_accepted = true;
    }
}
