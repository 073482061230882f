//! What each machine tells of each session, once all is over.

use serde_json::{Value, json};

use super::audit::{Said, Told};
use super::book;
use super::company::Company;
use super::follower::tell_anew;
use super::line::Stop;

/// Has every machine tell every session anew, by session and machine.
///
/// # Errors
/// Where one does not.
pub async fn all(company: &Company, sessions: usize) -> Result<Vec<Vec<Told>>, String> {
    let mut all: Vec<Vec<Told>> = (0..sessions).map(|_| Vec::new()).collect();
    for machine in 0..company.machines.count() {
        let why = |stop: Stop| format!("machine {machine}: {stop:?}");
        let mut line = company.machines.line(machine).await.map_err(why)?;
        for (session, told) in all.iter_mut().enumerate() {
            let telling = tell_anew(company, session, &mut line).await.map_err(why)?;
            let mut params = book::session(session);
            params["limit"] = json!(1000);
            let history = line.call("chat.history", params).await.map_err(why)?;
            let messages = history["messages"].as_array().cloned().unwrap_or_default();
            told.push(Told { telling, history: messages.iter().map(said).collect() });
        }
    }
    Ok(all)
}

fn said(message: &Value) -> Said {
    let text = |field: &str| message[field].as_str().unwrap_or_default().to_owned();
    (text("role"), text("content"), text("run"))
}
