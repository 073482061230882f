//! The Control UIs, the daemon serving their unmodified files, clicked in a browser.

use crate::npm::Generation;
use crate::page::{Page, Thread};
use crate::stage::{Auth, Stage};
use crate::support::tools::needs;
use crate::support::upstream::Turn;
use crate::support::wait_for;

/// Faults that are no faults: pictures that nobody has.
const EXPECTED: [&str; 3] = ["/avatar", "/workspace-icon/", "favicon"];

/// Every page of the newer one.
const PAGES: [&str; 56] = [
    "/chat",
    "/new",
    "/activity",
    "/agents",
    "/apps",
    "/automations",
    "/custodian",
    "/dashboard",
    "/dashboards",
    "/debug",
    "/logs",
    "/meetings",
    "/memory-import",
    "/plugin",
    "/plugins",
    "/portals",
    "/sessions",
    "/skills",
    "/skills/workshop",
    "/systems",
    "/tasks",
    "/terminal",
    "/usage",
    "/workboard",
    "/worktrees",
    "/settings/about",
    "/settings/advanced",
    "/settings/agents",
    "/settings/ai-agents",
    "/settings/appearance",
    "/settings/approvals",
    "/settings/automation",
    "/settings/channels",
    "/settings/cloud-workers",
    "/settings/communications",
    "/settings/connection",
    "/settings/device",
    "/settings/device/permissions",
    "/settings/devices",
    "/settings/general",
    "/settings/infrastructure",
    "/settings/labs",
    "/settings/lobsterdex",
    "/settings/mcp",
    "/settings/memory",
    "/settings/model-providers",
    "/settings/model-setup",
    "/settings/notifications",
    "/settings/plugins",
    "/settings/profile",
    "/settings/search",
    "/settings/secrets",
    "/settings/security",
    "/settings/skills",
    "/settings/talk",
    "/settings/updates",
];

/// What is not there and whose absence its pages take in silence, or explain in words of their own.
const UNKNOWN: [&str; 5] = [
    "sessions.observer.visibility",
    "sessions.companion.state",
    "sessions.branches.list",
    "artifacts.list",
    "config.schema.lookup",
];

/// What looks like an error and is none: how a page explains that what it is for is not there, or that
/// there is nothing yet.
const EXPLAINED: [&str; 2] = ["Update the Gateway to continue setup with OpenClaw.", "No recap yet"];

#[test]
fn no_page_of_openclaws_is_blank_or_red() {
    needs!("clients", "npm", "chromium");
    let stage = Stage::new(Generation::OpenClaw, Auth::Token);
    let mut page = open(&stage);
    converse(&stage, &mut page, "what do herons do", &["Herons ", "wade."]);
    let mut wrong = Vec::new();
    for path in PAGES {
        page.open(&format!("http://{}{path}", stage.address()));
        let view = page.view();
        if view.text.is_empty() {
            wrong.push(format!("{path} is blank (at {})", view.path));
        }
        for red in &view.red {
            if !EXPLAINED.iter().any(|words| red.contains(words)) {
                wrong.push(format!("{path} shows an error: {red}"));
            }
        }
        for words in ["unknown method", "missing scope"] {
            if view.text.contains(words) {
                wrong.push(format!("{path} shows {words:?}: {}", view.text));
            }
        }
        for refusal in &view.refused {
            if !UNKNOWN.iter().any(|method| *refusal == format!("{method}: unknown method: {method}")) {
                wrong.push(format!("{path} was refused {refusal}"));
            }
        }
    }
    let faults = page.faults().into_iter().filter(|fault| fault.contains("page error"));
    wrong.extend(faults);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn clawdbots_with_a_token() {
    needs!("clients", "npm", "chromium");
    a_day_in_the_browser(Generation::Clawdbot, Auth::Token);
}

#[test]
fn openclaws_with_a_token() {
    needs!("clients", "npm", "chromium");
    a_day_in_the_browser(Generation::OpenClaw, Auth::Token);
}

#[test]
fn clawdbots_without_a_credential() {
    needs!("clients", "npm", "chromium");
    a_word_without_a_credential(Generation::Clawdbot);
}

#[test]
fn openclaws_without_a_credential() {
    needs!("clients", "npm", "chromium");
    a_word_without_a_credential(Generation::OpenClaw);
}

fn open(stage: &Stage) -> Page {
    let mut page = Page::start(stage.home.path());
    let token = stage.token().map(|token| match stage.generation {
        Generation::Clawdbot => format!("?token={token}"),
        Generation::OpenClaw => format!("#token={token}"),
    });
    page.open(&format!("http://{}/chat{}", stage.address(), token.unwrap_or_default()));
    connected(stage, &mut page);
    page
}

fn connected(stage: &Stage, page: &mut Page) {
    page.wait_for_text("a connected page", |text| match stage.generation {
        Generation::Clawdbot => text.contains("Health") && text.contains("OK"),
        Generation::OpenClaw => text.contains("Message Assistant") || text.contains("Connected"),
    });
}

/// How many bubbles of this role hold this text.
fn bubbles(thread: &Thread, role: &str, text: &str) -> usize {
    thread.iter().filter(|(who, said)| who == role && said.contains(text)).count()
}

/// Sends a message and waits for its answer.
fn converse(stage: &Stage, page: &mut Page, question: &str, answer: &[&str]) {
    stage.will_say(answer);
    page.send(question);
    told(page, question, &answer.concat());
    page.wait_for_button(stop(stage.generation), false);
}

/// Waits until both are there, each once.
fn told(page: &mut Page, question: &str, answer: &str) {
    page.wait(&format!("{question:?} and {answer:?}, each once"), |thread| {
        bubbles(thread, "user", question) == 1 && bubbles(thread, "assistant", answer) == 1
    });
}

fn stop(generation: Generation) -> &'static str {
    match generation {
        Generation::Clawdbot => "Stop",
        Generation::OpenClaw => "Stop generating",
    }
}

fn no_faults(page: &mut Page, when: &str) {
    let faults: Vec<String> = page.faults();
    let faults: Vec<&String> =
        faults.iter().filter(|fault| !EXPECTED.iter().any(|expected| fault.contains(expected))).collect();
    assert!(faults.is_empty(), "{when}: {faults:#?}\nthe page:\n{}", page.text());
}

fn a_word_without_a_credential(generation: Generation) {
    let stage = Stage::new(generation, Auth::Open);
    let mut page = open(&stage);
    converse(&stage, &mut page, "may I come in", &["No ", "credential ", "needed."]);
    no_faults(&mut page, "without a credential");
}

fn a_day_in_the_browser(generation: Generation, auth: Auth) {
    let mut stage = Stage::new(generation, auth);
    let mut page = open(&stage);
    converse(&stage, &mut page, "what do herons do", &["Herons ", "wade ", "slowly."]);
    converse(&stage, &mut page, "and at night", &["They ", "roost."]);
    no_faults(&mut page, "after two turns");

    // What streams is seen while it streams, and an abort ends it.
    stage.will_hang_after("They stand and wait");
    page.send("when there is no fish");
    told(&mut page, "when there is no fish", "They stand and wait");
    page.press(stop(generation));
    page.wait_for_button(stop(generation), false);
    converse(&stage, &mut page, "are you there", &["Here ", "I am."]);

    // A provider that refuses is no silence. (Theirs has words of its own for it, or none.)
    if stage.daemon().is_some() {
        stage.upstream.then(Turn::Status(400, None, r#"{"error":{"message":"no such lake"}}"#.into()));
        page.send("ask another lake");
        page.wait_for_text("the error", |text| text.contains("no such lake"));
        page.wait_for_button(stop(generation), false);
    }

    page.reload();
    connected(&stage, &mut page);
    told(&mut page, "what do herons do", "Herons wade slowly.");
    told(&mut page, "and at night", "They roost.");
    told(&mut page, "are you there", "Here I am.");

    if stage.daemon().is_some() {
        stage.will_hang_after("Before the storm");
        page.send("is it going to rain");
        told(&mut page, "is it going to rain", "Before the storm");
        // The older page waits for the end of its run, wherever it hears of it.
        stage.upstream.then(Turn::EndLate("It rains, and the answer is whole.".into()));
        stage.crash();
        told(&mut page, "is it going to rain", "and the answer is whole.");
        wait_for("the end of the answer", stage.upstream.end());
        page.wait_for_button(stop(generation), false);
        converse(&stage, &mut page, "and now", &["Dry ", "again."]);
        told(&mut page, "is it going to rain", "and the answer is whole.");
    }
    every_tab(&stage, &mut page);
}

/// Each page that the navigation leads to shows something, and none breaks.
fn every_tab(stage: &Stage, page: &mut Page) {
    let tabs = page.tabs();
    assert!(tabs.len() >= 5, "the navigation is there: {tabs:?}\n{}", page.text());
    for tab in &tabs {
        page.open(&format!("http://{}{tab}", stage.address()));
        page.wait_for_text(&format!("{tab} to show something"), |text| text.trim().len() > 100);
    }
    page.open(&format!("http://{}/sessions", stage.address()));
    page.wait_for_text("the session in the list", |text| text.to_lowercase().contains("main"));
    let errors: Vec<String> =
        page.faults().into_iter().filter(|fault| fault.contains("page error")).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}
