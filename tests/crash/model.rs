//! The model provider: it outlives every daemon, answers as the scripts say, and remembers what it
//! was asked, so that it knows when it is asked a finished step again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::plan::{Outcome, Script, named};
use crate::support::upstream::read_request;

/// What is known of the provider's side.
#[derive(Default)]
pub struct Model {
    seed: u64,
    /// The last step of each prompt that was asked for.
    asked: RefCell<HashMap<String, usize>>,
    requests: RefCell<u64>,
    /// Whether a finished step may be asked again.
    may_ask_again: bool,
}

impl Model {
    /// Answers by the scripts of this seed. `may_ask_again` is for several daemons, one of which may not know yet that
    /// another one has gone on with its run.
    pub fn new(seed: u64, may_ask_again: bool) -> Self {
        Self { seed, may_ask_again, ..Self::default() }
    }

    /// How many answers it was asked for.
    pub fn requests(&self) -> u64 {
        *self.requests.borrow()
    }

    /// Listens; `wrong` is told of every request that must not be.
    pub async fn listen(self: Rc<Self>, wrong: impl Fn(String) + Clone + 'static) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        self.listen_on(listener, wrong);
        address
    }

    /// The same, on this listener.
    pub fn listen_on(self: Rc<Self>, listener: TcpListener, wrong: impl Fn(String) + Clone + 'static) {
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (model, wrong) = (self.clone(), wrong.clone());
                tokio::task::spawn_local(async move { model.serve(stream, wrong).await });
            }
        });
    }

    /// One connection, until it ends.
    async fn serve(&self, mut stream: TcpStream, wrong: impl Fn(String)) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        loop {
            let request = read_request(&mut stream).await?;
            if request.head.starts_with("GET ") {
                // It has no list of models.
                stream.write_all(b"HTTP/1.1 404 x\r\ncontent-length: 0\r\n\r\n").await.ok()?;
                continue;
            }
            let body = request.body;
            *self.requests.borrow_mut() += 1;
            match self.asked(&body) {
                Ok((script, step, heard)) => answer(&mut stream, &script, step, &heard).await?,
                Err(why) => {
                    wrong(format!("the model was asked what it must not be: {why}\n{body:#}"));
                    return None;
                }
            }
        }
    }

    /// Which step is asked for: with the script and what became of the calls of the step before.
    fn asked(&self, body: &Value) -> Result<(Script, usize, Vec<Outcome>), String> {
        let messages = body["messages"].as_array().ok_or("no messages")?;
        let at = messages.iter().rposition(|message| message["role"] == "user").ok_or("no prompt")?;
        let prompt = named(messages[at]["content"].as_str().unwrap_or_default());
        let script = Script::of(self.seed, prompt);
        let (mut step, mut heard) = (0, Vec::new());
        let mut rest = messages[at + 1..].iter().peekable();
        while let Some(message) = rest.next() {
            let said = message["content"].as_str().unwrap_or_default();
            let expected = script.says(step, &heard).concat();
            if message["role"] != "assistant" || said != expected {
                return Err(format!("{prompt}: step {step} was not {said:?} but {expected:?}"));
            }
            heard.clear();
            for (index, call) in script.steps[step].calls.iter().enumerate() {
                let told = &message["tool_calls"][index];
                let result =
                    rest.next_if(|message| message["role"] == "tool").ok_or("a call without a result")?;
                if told["id"] != *call.id || result["tool_call_id"] != *call.id {
                    return Err(format!("{prompt}: not the call {call:?}"));
                }
                let error = result["content"].as_str().and_then(|text| text.strip_prefix("error: "));
                heard.push(error.and_then(Outcome::of_error).unwrap_or(Outcome::Counted));
            }
            step += 1;
        }
        if step >= script.steps.len() {
            return Err(format!("{prompt}: has no step {step}"));
        }
        let mut asked = self.asked.borrow_mut();
        let last = asked.entry(prompt.to_owned()).or_default();
        if step < *last && !self.may_ask_again {
            return Err(format!("{prompt}: step {step} again, after step {last}"));
        }
        *last = step.max(*last);
        Ok((script, step, heard))
    }
}

async fn answer(stream: &mut TcpStream, script: &Script, step: usize, heard: &[Outcome]) -> Option<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.ok()?;
    let chunk = |delta: Value, reason: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        json!({"id": "c", "choices": [choice], "usage": null})
    };
    let Script { steps } = script;
    for piece in script.says(step, heard) {
        tokio::time::sleep(Duration::from_millis(steps[step].pace_ms)).await;
        write(stream, &chunk(json!({"content": piece}), Value::Null).to_string()).await?;
    }
    for (index, call) in steps[step].calls.iter().enumerate() {
        let function = json!({"name": call.tool, "arguments": call.input});
        let call = json!({"index": index, "id": call.id, "type": "function", "function": function});
        write(stream, &chunk(json!({"tool_calls": [call]}), Value::Null).to_string()).await?;
    }
    let reason = if steps[step].calls.is_empty() { "stop" } else { "tool_calls" };
    write(stream, &chunk(json!({}), json!(reason)).to_string()).await?;
    let usage = json!({"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25});
    write(stream, &json!({"id": "c", "choices": [], "usage": usage}).to_string()).await?;
    write(stream, "[DONE]").await?;
    stream.write_all(b"0\r\n\r\n").await.ok()
}

async fn write(stream: &mut TcpStream, data: &str) -> Option<()> {
    let event = format!("data: {data}\n\n");
    stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await.ok()
}
