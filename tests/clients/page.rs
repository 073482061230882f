//! A page in a browser, which a test looks at and acts on: Chromium without a window, driven by
//! `page.mjs`.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::npm::Generation;
use crate::support::{TIMEOUT, tools};

/// How often the page is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A browser with one page; it ends when dropped.
pub struct Page {
    driver: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    complaints: std::thread::JoinHandle<String>,
}

/// What a conversation shows: who, and what, in order.
pub type Thread = Vec<(String, String)>;

/// The main part of a page.
#[derive(Debug)]
pub struct View {
    /// Where it is, which may be elsewhere than where it was opened.
    pub path: String,
    /// All its text.
    pub text: String,
    /// The texts of what is there to say that something failed.
    pub red: Vec<String>,
    /// Which methods were refused to it, and why, since this was last asked.
    pub refused: Vec<String>,
}

impl Page {
    /// Opens an empty page; what the browser keeps is in `home`.
    pub fn start(home: &Path) -> Self {
        // The driver is the same for pages of both generations.
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/page.mjs");
        let mut driver = Generation::OpenClaw
            .command(home, &program)
            .env("PLAYWRIGHT", Generation::OpenClaw.modules().join("playwright-core/index.mjs"))
            .env("CHROMIUM", tools::chromium().expect("a browser"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the driver starts");
        let stdout = BufReader::new(driver.stdout.take().expect("stdout is piped"));
        let mut stderr = driver.stderr.take().expect("stderr is piped");
        let (sender, answers) = mpsc::channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let complaints = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        let commands = driver.stdin.take().expect("stdin is piped");
        Self { driver, commands, answers, complaints }
    }

    /// Goes to an address.
    pub fn open(&mut self, url: &str) {
        self.ask(&json!({"do": "open", "url": url}));
    }

    /// Loads it anew.
    pub fn reload(&mut self) {
        self.ask(&json!({"do": "reload"}));
    }

    /// Writes a message and sends it.
    pub fn send(&mut self, text: &str) {
        self.ask(&json!({"do": "send", "text": text}));
    }

    /// Presses the button whose label or text is or begins so.
    pub fn press(&mut self, label: &str) {
        self.ask(&json!({"do": "press", "label": label}));
    }

    /// Whether such a button is to be seen.
    pub fn has_button(&mut self, label: &str) -> bool {
        self.ask(&json!({"do": "button", "label": label})) == true
    }

    /// The conversation.
    pub fn thread(&mut self) -> Thread {
        let groups = self.ask(&json!({"do": "thread"}));
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        groups.as_array().expect("a list").iter().map(|group| (word(&group[0]), word(&group[1]))).collect()
    }

    /// All text that is to be seen.
    pub fn text(&mut self) -> String {
        self.ask(&json!({"do": "text"})).as_str().unwrap_or_default().to_owned()
    }

    /// Where the links of the page's navigation lead, each once.
    pub fn tabs(&mut self) -> Vec<String> {
        let tabs = self.ask(&json!({"do": "tabs"}));
        tabs.as_array().expect("a list").iter().filter_map(|tab| tab.as_str().map(str::to_owned)).collect()
    }

    /// What the main part of the page shows once what it asked for was answered.
    pub fn view(&mut self) -> View {
        let seen = self.ask(&json!({"do": "view"}));
        let texts = |name: &str| -> Vec<String> {
            let list = seen[name].as_array().expect("a list").iter();
            list.filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let text = |name: &str| seen[name].as_str().unwrap_or_default().to_owned();
        View { path: text("path"), text: text("text"), red: texts("red"), refused: texts("refused") }
    }

    /// What went wrong in the page: its own errors, and answers of the server that say so.
    pub fn faults(&mut self) -> Vec<String> {
        let faults = self.ask(&json!({"do": "faults"}));
        faults
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|fault| fault.as_str().map(str::to_owned))
            .collect()
    }

    /// Waits until the conversation is as wanted; gives it.
    ///
    /// # Panics
    /// After [`TIMEOUT`], with what the page shows.
    pub fn wait(&mut self, what: &str, wanted: impl Fn(&Thread) -> bool) -> Thread {
        let begin = Instant::now();
        loop {
            let thread = self.thread();
            if wanted(&thread) {
                return thread;
            }
            if begin.elapsed() > TIMEOUT {
                let (text, faults) = (self.text(), self.faults());
                panic!(
                    "waited {TIMEOUT:?} for {what}; the page:\n{text}\nits conversation: {thread:#?}\nfaults: {faults:#?}"
                );
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until the page shows what is wanted.
    pub fn wait_for_text(&mut self, what: &str, wanted: impl Fn(&str) -> bool) {
        let begin = Instant::now();
        loop {
            let text = self.text();
            if wanted(&text) {
                return;
            }
            if begin.elapsed() > TIMEOUT {
                let faults = self.faults();
                panic!("waited {TIMEOUT:?} for {what}; the page:\n{text}\nfaults: {faults:#?}");
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until such a button is there, or is not.
    pub fn wait_for_button(&mut self, label: &str, there: bool) {
        let begin = Instant::now();
        while self.has_button(label) != there {
            if begin.elapsed() > TIMEOUT {
                let text = self.text();
                panic!("waited {TIMEOUT:?} for the button {label:?} to be there: {there}; the page:\n{text}");
            }
            std::thread::sleep(LOOK);
        }
    }

    fn ask(&mut self, command: &Value) -> Value {
        let sent = writeln!(self.commands, "{command}").and_then(|()| self.commands.flush());
        let answer = sent.ok().and_then(|()| self.answers.recv_timeout(TIMEOUT * 2).ok());
        let Some(answer) = answer else {
            let _ = self.driver.kill();
            let (ended, nothing) = (self.driver.wait(), std::thread::spawn(String::new));
            let said = std::mem::replace(&mut self.complaints, nothing).join().unwrap_or_default();
            panic!("{command}: the driver does not answer ({ended:?}):\n{said}");
        };
        let mut answer: Value =
            serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
        if let Some(error) = answer["error"].as_str() {
            let text = self.text();
            panic!("{command}: {error}\nthe page:\n{text}");
        }
        answer["ok"].take()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // It closes the browser when its input ends, and is given a moment for that.
        let _ = writeln!(self.commands, r#"{{"do":"end"}}"#);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(5) {
            if self.driver.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
