//! A model provider that does wrong in every way known, in every format, a hundred times each: every prompt has one
//! end and no more, which says what went wrong; nobody is asked again once anything was said; and nothing is kept
//! of all that, neither a place among the calls nor a reservation nor a connection.
//!
//! A hundred conversations in each format go through all of them at once. What each of them is to meet next stands
//! in its prompt, by which the provider knows it. The figures are printed.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::eventually;
use crate::support::process::open_files;
use crate::support::upstream::{Format, events, read_request};

const KINDS: [&str; 3] = ["anthropic", "openai", "openai-responses"];

/// How many conversations there are in each format.
const LANES: usize = 100;

/// So many of them meet what moves megabytes.
const HEAVY_LANES: usize = 3;

/// What is said before it goes wrong, and where it does not.
const SAID: &str = "so far";
const FINE: &str = "fine";

/// One way to do wrong, and what is to come of it.
struct Case {
    name: &'static str,
    /// Which of the deadlines are short.
    patience: &'static str,
    /// How often the provider is asked.
    asked: RangeInclusive<usize>,
    /// What the client is told until the end.
    said: &'static str,
    /// What it is told that went wrong; nothing where nothing did.
    error: &'static str,
    answer: fn(&Asked) -> Answer,
}

/// A request as the provider knows it.
struct Asked {
    format: Format,
    /// How often this prompt came before.
    before: usize,
    /// Whether the connection brought another request before.
    is_reused: bool,
}

/// What it answers: pieces, each written at once, and what becomes of the connection.
struct Answer(Vec<Vec<u8>>, Then);

#[derive(Clone, Copy)]
enum Then {
    Keep,
    Close,
    Reset,
    /// Nothing more is said, until the client leaves.
    Hang,
}

impl Asked {
    /// The events of an answer that says this and makes these calls, before its end and of its end.
    fn events(&self, text: &str, calls: &[(String, String)]) -> (Vec<String>, Vec<String>) {
        let pieces: Vec<String> = Some(text.to_owned()).filter(|text| !text.is_empty()).into_iter().collect();
        events(self.format, &pieces, calls)
    }

    /// A stream that says this, up to its end.
    fn so_far(&self, text: &str) -> Vec<Vec<u8>> {
        begun("text/event-stream", self.events(text, &[]).0)
    }

    /// A whole answer that says this.
    fn fine(&self, text: &str) -> Answer {
        let (events, ending) = self.events(text, &[]);
        whole(begun("text/event-stream", events.into_iter().chain(ending)))
    }

    /// The next event says that something is wrong.
    fn reported(&self) -> String {
        let error = json!({ "type": "overloaded_error", "message": "Overloaded" });
        format!("event: error\ndata: {}\n\n", json!({ "type": "error", "error": error }))
    }
}

/// A head, and a chunk for each event.
fn begun(content_type: &str, events: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<Vec<u8>> {
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n");
    std::iter::once(head.into_bytes()).chain(events.into_iter().map(|event| chunk(event.as_ref()))).collect()
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// The body has its end, and the connection is kept.
fn whole(mut pieces: Vec<Vec<u8>>) -> Answer {
    pieces.push(b"0\r\n\r\n".to_vec());
    Answer(pieces, Then::Keep)
}

/// An answer other than success.
fn status(status: u16, fields: &str, kind: &str, message: &str) -> Answer {
    let body = json!({ "type": "error", "error": { "type": kind, "message": message } }).to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\n{fields}content-length: {length}\r\n\r\n"
    );
    Answer(vec![head.into_bytes(), body.into_bytes()], Then::Keep)
}

/// One that goes on with more events.
fn more(mut pieces: Vec<Vec<u8>>, event: impl AsRef<[u8]>) -> Vec<Vec<u8>> {
    pieces.push(chunk(event.as_ref()));
    pieces
}

const fn fails(
    name: &'static str,
    asked: RangeInclusive<usize>,
    error: &'static str,
    answer: fn(&Asked) -> Answer,
) -> Case {
    Case { name, patience: "", asked, said: "", error, answer }
}

/// The same once something was said: it is asked once.
const fn cuts(name: &'static str, error: &'static str, answer: fn(&Asked) -> Answer) -> Case {
    Case { name, patience: "", asked: 1..=1, said: SAID, error, answer }
}

const fn works(
    name: &'static str,
    asked: RangeInclusive<usize>,
    said: &'static str,
    answer: fn(&Asked) -> Answer,
) -> Case {
    Case { name, patience: "", asked, said, error: "", answer }
}

/// All of them; each provider is asked again once where that may help.
const CASES: &[Case] = &[
    // The provider refuses.
    fails("unauthorized", 1..=1, "401: authentication_error: no", |_| {
        status(401, "", "authentication_error", "no")
    }),
    fails("bad request", 1..=1, "400: invalid_request_error: no", |_| {
        status(400, "", "invalid_request_error", "no")
    }),
    fails("unknown model", 1..=1, "404: not_found_error: no", |_| status(404, "", "not_found_error", "no")),
    // Asked for less, twice, where there is something to leave out.
    fails("too long", 1..=3, "answered 400: \"invalid_request_error: prompt is too long", |_| {
        status(400, "", "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum")
    }),
    fails("redirect", 1..=1, "307: it is to be found at https://elsewhere.example/v1", |_| {
        status(307, "location: https://elsewhere.example/v1?key=x\r\n", "x", "moved")
    }),
    // It has no room.
    fails("rate limit", 2..=2, "429: rate_limit_error: slow", |_| {
        status(429, "", "rate_limit_error", "slow")
    }),
    fails("rate limit for an hour", 1..=1, "429: rate_limit_error: slow", |_| {
        status(429, "retry-after: 3600\r\n", "rate_limit_error", "slow")
    }),
    fails("rate limit until a date", 1..=1, "429: rate_limit_error: slow", |_| {
        status(429, "retry-after: Wed, 21 Oct 2099 07:28:00 GMT\r\n", "rate_limit_error", "slow")
    }),
    works("rate limit for no time", 2..=2, FINE, |asked| match asked.before {
        0 => status(429, "retry-after: 0\r\n", "rate_limit_error", "slow"),
        _ => asked.fine(FINE),
    }),
    works("rate limit until a date gone by", 2..=2, FINE, |asked| match asked.before {
        0 => status(429, "retry-after: Wed, 21 Oct 2015 07:28:00 GMT\r\n", "rate_limit_error", "slow"),
        _ => asked.fine(FINE),
    }),
    fails("overloaded", 2..=2, "529: overloaded_error: Overloaded", |_| {
        status(529, "", "overloaded_error", "Overloaded")
    }),
    works("unavailable once", 2..=2, FINE, |asked| match asked.before {
        0 => status(503, "", "api_error", "no"),
        _ => asked.fine(FINE),
    }),
    fails("server error", 2..=2, "500: api_error: oops", |_| status(500, "", "api_error", "oops")),
    fails("overloaded within", 2..=2, "overloaded_error: Overloaded", |asked| {
        whole(more(asked.so_far(""), asked.reported()))
    }),
    cuts("overloaded after a word", "overloaded_error: Overloaded", |asked| {
        whole(more(asked.so_far(SAID), asked.reported()))
    }),
    // It says nothing.
    Case {
        patience: "-hasty",
        ..fails("no head", 1..=1, "no answer within", |_| Answer(vec![], Then::Hang))
    },
    Case {
        patience: "-silent",
        ..fails("no event", 1..=1, "silent for", |_| Answer(begun("text/event-stream", [""; 0]), Then::Hang))
    },
    Case {
        patience: "-silent",
        ..cuts("silence after a word", "silent for", |asked| Answer(asked.so_far(SAID), Then::Hang))
    },
    fails("empty answer", 2..=2, "answer is empty", |asked| asked.fine("")),
    fails("empty stream", 2..=2, "holds no event", |_| whole(begun("text/event-stream", [""; 0]))),
    // The connection is lost. One that was used before is replaced without a word.
    fails("closed", 2..=4, "connection closed without an answer", |_| Answer(vec![], Then::Close)),
    fails("reset", 2..=4, "connection reset", |_| Answer(vec![], Then::Reset)),
    works("closed while it was kept", 1..=2, FINE, |asked| match asked.is_reused {
        true => Answer(vec![], Then::Close),
        false => asked.fine(FINE),
    }),
    works("reset while it was kept", 1..=2, FINE, |asked| match asked.is_reused {
        true => Answer(vec![], Then::Reset),
        false => asked.fine(FINE),
    }),
    fails("closed within the head", 2..=2, "closed within the head of the answer", |_| {
        Answer(vec![b"HTTP/1.1 200 OK\r\ncontent-ty".to_vec()], Then::Close)
    }),
    fails("closed before an event", 2..=2, "holds no event", |_| {
        Answer(begun("text/event-stream", [""; 0]), Then::Close)
    }),
    cuts("closed after a word", "cut the answer", |asked| Answer(asked.so_far(SAID), Then::Close)),
    cuts("closed within a chunk", "cut the answer", |asked| {
        let mut pieces = asked.so_far(SAID);
        pieces.push(b"ff\r\ndata: {\"ty".to_vec());
        Answer(pieces, Then::Close)
    }),
    cuts("no terminator", "without its end marker", |asked| whole(asked.so_far(SAID))),
    fails("tool call cut", 2..=2, "without its end marker", |asked| {
        let mut events = asked.events("", &[("echo".into(), r#"{"text": "x"}"#.into())]).0;
        // Within its input, and what would follow is left out too.
        let half = events.iter().rposition(|event| event.contains("\"x")).unwrap_or_else(|| events.len() - 1);
        events.truncate(half);
        whole(begun("text/event-stream", events))
    }),
    // The model is told, and goes on.
    works("tool call at the limit", 2..=2, FINE, |asked| match asked.before {
        0 => {
            let (events, ending) = asked.events("", &[("echo".into(), r#"{"text": "#.into())]);
            let at_limit = |event: String| {
                let event = event.replace(r#""tool_use""#, r#""max_tokens""#);
                let event = event.replace(r#""tool_calls","#, r#""length","#);
                event.replace("response.completed", "response.incomplete")
            };
            let ending = ending.into_iter().map(at_limit);
            whole(begun("text/event-stream", events.into_iter().chain(ending)))
        }
        _ => asked.fine(FINE),
    }),
    // It speaks another language.
    fails("no HTTP", 2..=2, "not HTTP", |_| Answer(vec![b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()], Then::Close)),
    fails("TLS", 1..=1, "base_url has to begin with https://", |_| {
        Answer(vec![b"\x15\x03\x01\x00\x02\x02\x46".to_vec()], Then::Close)
    }),
    fails("a page", 1..=1, "text/html instead of text/event-stream: a page \"Sign in\"", |_| {
        whole(begun("text/html", ["<html><title>Sign in</title></html>"]))
    }),
    fails("an error that is no stream", 2..=2, "overloaded_error: Overloaded", |_| {
        let error = json!({ "error": { "type": "overloaded_error", "message": "Overloaded" } }).to_string();
        whole(begun("application/json", [error]))
    }),
    fails("compressed", 2..=2, "content-encoding gzip", |_| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n\x1f\x1b";
        Answer(vec![head.into()], Then::Keep)
    }),
    fails("malformed", 2..=2, "sent an event that can't be read", |_| {
        whole(begun("text/event-stream", ["data: }garbage{\n\n"]))
    }),
    cuts("malformed after a word", "sent an event that can't be read", |asked| {
        whole(more(asked.so_far(SAID), "data: [\n\n"))
    }),
    works("split characters", 1..=1, "Hé İ😀", |asked| {
        let (events, ending) = asked.events("Hé İ😀", &[]);
        let stream: String = events.into_iter().chain(ending).collect();
        // Wherever it is split, it is within a character at times.
        whole(begun("text/event-stream", stream.as_bytes().chunks(3)))
    }),
    works("no UTF-8", 1..=1, "a\u{fffd}b", |asked| {
        let (events, ending) = asked.events("a~b", &[]);
        let damaged = events.into_iter().chain(ending).map(|event| {
            event
                .into_bytes()
                .into_iter()
                .map(|byte| if byte == b'~' { 0xff } else { byte })
                .collect::<Vec<u8>>()
        });
        whole(begun("text/event-stream", damaged))
    }),
    works("more after the end", 1..=1, FINE, |asked| {
        let Answer(mut pieces, _) = asked.fine(FINE);
        pieces.pop();
        whole(more(pieces, "data: }garbage{\n\n"))
    }),
    cuts("a line without end", "larger than 16777216 bytes", |asked| {
        let pieces = more(asked.so_far(SAID), "data: ");
        let megabyte = chunk(&vec![b' '; 1 << 20]);
        Answer(pieces.into_iter().chain(std::iter::repeat_n(megabyte, 17)).collect(), Then::Hang)
    }),
];

impl Case {
    /// How many conversations of a format meet it.
    fn lanes(&self) -> usize {
        if self.name == "a line without end" { HEAVY_LANES } else { LANES }
    }
}

/// The provider, which stops when dropped.
struct Provider {
    address: SocketAddr,
    known: Arc<Known>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What it knows.
#[derive(Default)]
struct Known {
    /// How often each prompt came.
    asked: Mutex<HashMap<String, usize>>,
    /// The connections that are open, and those with a request that is being answered.
    open: AtomicUsize,
    busy: AtomicUsize,
}

/// Counts for as long as it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Provider {
    fn start() -> Self {
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = std::sync::mpsc::channel();
        let known = Arc::new(Known::default());
        let shared = known.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                ready.send(listener.local_addr().unwrap()).unwrap();
                let accept = async {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        let known = shared.clone();
                        tokio::spawn(async move {
                            let _open = Counted::new(&known.open);
                            serve(&known, stream).await;
                        });
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address: started.recv().unwrap(), known, stop: Some(stop), thread: Some(thread) }
    }

    fn asked(&self, prompt: &str) -> usize {
        self.known.asked.lock().unwrap().get(prompt).copied().unwrap_or(0)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers the requests of one connection as their prompts say.
async fn serve(known: &Known, mut stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut is_reused = false;
    while let Some(request) = read_request(&mut stream).await {
        let _busy = Counted::new(&known.busy);
        let body = request.body.to_string();
        let prompt = body.rfind("meet ").map(|at| &body[at..]).expect("a prompt of this test");
        let prompt = &prompt[..prompt.find('.').expect("its end")];
        let (number, _) = prompt["meet ".len()..].split_once(' ').expect("the number of a case");
        let case = &CASES[number.parse::<usize>().expect("a number")];
        let before = {
            let mut asked = known.asked.lock().unwrap();
            let count = asked.entry(prompt.to_owned()).or_default();
            *count += 1;
            *count - 1
        };
        let format = Format::of(&request.path);
        let Answer(pieces, then) = (case.answer)(&Asked { format, before, is_reused });
        is_reused = true;
        for piece in pieces {
            stream.write_all(&piece).await.ok()?;
            tokio::task::yield_now().await;
        }
        match then {
            Then::Keep => {}
            Then::Close => return None,
            Then::Reset => {
                stream.set_zero_linger().ok()?;
                return None;
            }
            Then::Hang => {
                let _ = stream.read(&mut [0]).await;
                return None;
            }
        }
    }
    None
}

/// A conversation under way.
struct Lane {
    kind: &'static str,
    account: String,
    /// The case it meets, and those it is yet to meet.
    case: usize,
    prompt: String,
    text: String,
    errors: Vec<String>,
}

impl Lane {
    /// Meets the next case; false where there is none.
    fn next(
        &mut self,
        number: usize,
        client: &mut Client,
        under_way: &mut HashMap<String, usize>,
        index: usize,
    ) -> bool {
        while self.case < CASES.len() && number >= CASES[self.case].lanes() {
            self.case += 1;
        }
        let Some(case) = CASES.get(self.case) else { return false };
        let Self { kind, account, .. } = self;
        self.prompt = format!("meet {} {kind} {number}", self.case);
        let content = format!("{}. ({})", self.prompt, case.name);
        let model = format!("{kind}{}/m", case.patience);
        let params =
            json!({ "channel": "websocket", "account": account, "content": content, "model": model });
        under_way.insert(client.request("chat.send", params), index);
        true
    }

    /// It is over: holds what was told against what was to come.
    fn check(&mut self, provider: &Provider) {
        let Self { kind, account, case, prompt, text, errors } = self;
        let case = &CASES[*case];
        let what = format!("{kind} {account}: {}: said {text:?}, errors {errors:?}", case.name);
        assert_eq!(text, case.said, "{what}");
        match case.error {
            "" => assert!(errors.is_empty(), "{what}"),
            error => assert!(errors.len() == 1 && errors[0].contains(error), "{error:?}: {what}"),
        }
        let asked = provider.asked(prompt);
        assert!(case.asked.contains(&asked), "asked {asked} times: {what}");
        text.clear();
        errors.clear();
    }
}

/// A figure of `/metrics`.
fn figure(daemon: &Daemon, name: &str) -> u64 {
    let (_, told) = daemon.get("/metrics");
    let values: Vec<u64> = told
        .lines()
        .filter_map(|line| line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '{'])))
        .map(|rest| rest.rsplit_once(' ').and_then(|(_, value)| value.parse().ok()).expect("a number"))
        .collect();
    assert!(!values.is_empty(), "no {name}: {told}");
    values.iter().sum()
}

#[test]
fn whatever_a_provider_does_wrong_a_prompt_has_one_end_and_nothing_is_kept() {
    let begun = Instant::now();
    let provider = Provider::start();
    let url = format!("http://{}", provider.address);
    let mut config =
        "[limits]\nrequests_burst = 0\nrequests_per_second = 1000000\n[budgets]\ndaily = 1000000000\n\
         [agents.main]\nprovider = \"openai\"\nmodel = \"m\"\n"
            .to_owned();
    for kind in KINDS {
        for (patience, deadline) in
            [("", ""), ("-hasty", "first_byte_timeout_ms = 200\n"), ("-silent", "silence_timeout_ms = 200\n")]
        {
            config += &format!(
                "[providers.{kind}{patience}]\nkind = \"{kind}\"\nbase_url = \"{url}\"\nretries = 1\n{deadline}"
            );
        }
    }
    let daemon = Daemon::with(&config);
    let files = open_files(daemon.pid());
    let mut client = Client::connect(daemon.address);
    let mut lanes: Vec<Lane> = Vec::new();
    for number in 0..LANES {
        for kind in KINDS {
            let account = format!("{kind}{number}");
            let (prompt, text, errors) = (String::new(), String::new(), Vec::new());
            lanes.push(Lane { kind, account, case: 0, prompt, text, errors });
        }
    }
    let mut under_way = HashMap::new();
    let mut met: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    // One format after the other: a connection may have so many requests in flight.
    for kind in KINDS {
        for (index, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| lane.kind == kind) {
            assert!(lane.next(index / KINDS.len(), &mut client, &mut under_way, index));
        }
        while !under_way.is_empty() {
            let frame = client.receive();
            let Some(id) = frame["id"].as_str() else { continue };
            let index = *under_way.get(id).unwrap_or_else(|| panic!("it is over: {frame}"));
            let lane = &mut lanes[index];
            match frame["event"].as_str() {
                Some("text") => lane.text += frame["data"].as_str().unwrap(),
                Some("error") => lane.errors.push(frame["data"].as_str().unwrap().to_owned()),
                Some("done") => {
                    under_way.remove(id);
                    lane.check(&provider);
                    *met.entry((lane.kind, CASES[lane.case].name)).or_default() += 1;
                    lane.case += 1;
                    lane.next(index / KINDS.len(), &mut client, &mut under_way, index);
                }
                Some(_) => {}
                None => panic!("{}: {frame}", lane.prompt),
            }
        }
    }
    // Nothing follows an end.
    let pong = client.call("ping", Value::Null);
    assert_eq!(pong["result"], "pong");
    let late: Vec<&Value> = client.kept().iter().filter(|frame| !frame["id"].is_null()).collect();
    assert_eq!(late, [&Value::Null; 0]);

    eventually("all requests to be over", || provider.known.busy.load(SeqCst) == 0);
    eventually("all calls to be given back", || {
        figure(&daemon, "clawmux_provider_calls_running") == 0
            && figure(&daemon, "clawmux_provider_calls_waiting") == 0
            && figure(&daemon, "clawmux_budget_reserved_tokens") == 0
    });
    // What is kept is kept for the next requests, and no more than were under way at once.
    let open = provider.known.open.load(SeqCst);
    assert!(open <= lanes.len(), "{open} connections are open");
    let more = open_files(daemon.pid()).saturating_sub(files);
    assert!(more <= open + 32, "{more} more files are open, and {open} connections");

    // The log has one end for each prompt, which says what went wrong in a word that programs know.
    for kind in KINDS {
        let rows = daemon.rows_of(&["session", "show", &format!("main:websocket:{kind}0:main")]);
        let of = |event: &'static str| rows.iter().filter(move |row| row["event"] == event);
        assert_eq!((of("prompt").count(), of("end").count()), (CASES.len(), CASES.len()), "{kind}");
        for (case, end) in CASES.iter().zip(of("end")) {
            let code = match case.error {
                "" => Value::Null,
                error if error.starts_with("no answer within") || error.starts_with("silent for") => {
                    json!("timeout")
                }
                _ => json!("provider"),
            };
            assert_eq!(end["error"]["code"], code, "{kind}: {}: {end}", case.name);
        }
    }

    let asked: usize = provider.known.asked.lock().unwrap().values().sum();
    let prompts: usize = met.values().sum();
    for ((kind, name), times) in &met {
        let expected = CASES.iter().find(|case| case.name == *name).map(Case::lanes);
        assert_eq!(Some(*times), expected, "{kind}: {name}");
    }
    println!(
        "{} faults, {prompts} prompts in {} formats, {asked} requests, {open} connections kept, {:?}",
        CASES.len(),
        KINDS.len(),
        Duration::from_millis(begun.elapsed().as_millis() as u64)
    );
}
