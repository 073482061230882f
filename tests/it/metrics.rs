//! `/metrics` of a whole daemon: what is told is well formed, is what was done, and is told to
//! whoever may know it, also while the log is stuck.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::{TIMEOUT, eventually};

/// A reading of `/metrics`.
#[derive(Debug, Default)]
struct Exposition {
    /// By the name of the metric: what it is, and its help.
    metrics: BTreeMap<String, (String, String)>,
    /// By the name of the sample and its labels, in their order.
    samples: BTreeMap<(String, Vec<(String, String)>), f64>,
}

impl Exposition {
    /// Reads it, and holds it against the rules of the format.
    fn parse(text: &str) -> Self {
        let mut read = Self::default();
        let body = text.strip_suffix("# EOF\n").unwrap_or_else(|| panic!("it has no end: {text}"));
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let (what, rest) = rest.split_once(' ').expect("a word");
                let (name, said) = rest.split_once(' ').expect("a name");
                let entry = read.metrics.entry(name.to_owned()).or_default();
                match what {
                    "HELP" => said.clone_into(&mut entry.1),
                    "TYPE" => said.clone_into(&mut entry.0),
                    "UNIT" => assert!(name.ends_with(&format!("_{said}")), "{line}"),
                    other => panic!("{other}: {line}"),
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let (name, labels) = match series.split_once('{') {
                Some((name, rest)) => (name, labels(rest.strip_suffix('}').expect("a bracket"))),
                None => (series, Vec::new()),
            };
            let value = value.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
            let before = read.samples.insert((name.to_owned(), labels), value);
            assert!(before.is_none(), "it stands twice: {line}");
        }
        read.check();
        read
    }

    /// The metric that a sample is of.
    fn metric_of(&self, sample: &str) -> (&str, &str) {
        let known = |name: &str| self.metrics.get_key_value(name).map(|(name, (kind, _))| (&**name, &**kind));
        let of_suffix = |suffix: &str| sample.strip_suffix(suffix).and_then(known);
        ["_total", "_bucket", "_sum", "_count", "_info"]
            .into_iter()
            .find_map(of_suffix)
            .or_else(|| known(sample))
            .unwrap_or_else(|| panic!("{sample} has no HELP and no TYPE"))
    }

    fn check(&self) {
        for (name, (kind, help)) in &self.metrics {
            assert!(name.starts_with("clawmux_"), "{name}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name}");
            assert!(help.len() > 5, "{name}: {help}");
            assert!(["counter", "gauge", "histogram", "info"].contains(&kind.as_str()), "{name} is a {kind}");
            // Base units only, and at the end.
            for unit in ["_ms", "_us", "_millis", "_kib", "_mb", "_percent"] {
                assert!(!name.contains(unit), "{name}");
            }
            for unit in ["_seconds", "_bytes"] {
                assert!(!name.contains(unit) || name.ends_with(unit), "{name}");
            }
            let timed =
                ["duration", "lag", "memory", "cpu", "queue_bytes"].iter().any(|word| name.contains(word));
            assert!(!timed || name.ends_with("_seconds") || name.ends_with("_bytes"), "{name} has no unit");
        }
        let mut told = BTreeSet::new();
        for ((sample, labels), value) in &self.samples {
            let (metric, kind) = self.metric_of(sample);
            told.insert(metric.to_owned());
            let is_right = match kind {
                "counter" => sample.ends_with("_total") && *value >= 0.0,
                "histogram" => ["_bucket", "_sum", "_count"].iter().any(|suffix| sample.ends_with(suffix)),
                "info" => sample.ends_with("_info") && *value == 1.0,
                _ => sample == metric,
            };
            assert!(is_right, "{sample} of {metric}, a {kind}: {value}");
            for (name, value) in labels {
                assert!(!name.is_empty() && value.len() < 200, "{sample}: {name}={value}");
                // Nobody's name, and no session's.
                assert!(!value.contains("websocket") && !value.contains("alice"), "{sample}: {name}={value}");
            }
        }
        // Buckets count up to the sum of all.
        for ((sample, labels), count) in &self.samples {
            let Some(metric) = sample.strip_suffix("_count") else { continue };
            let mut buckets: Vec<(f64, f64)> = self
                .samples
                .iter()
                .filter(|((name, _), _)| name.strip_suffix("_bucket") == Some(metric))
                .filter(|((_, all), _)| all.iter().filter(|(name, _)| name != "le").eq(labels.iter()))
                .map(|((_, all), value)| {
                    let (_, le) = all.iter().find(|(name, _)| name == "le").expect("a bound");
                    (if le == "+Inf" { f64::INFINITY } else { le.parse().expect("a number") }, *value)
                })
                .collect();
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{sample}: {buckets:?}");
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{sample}");
        }
    }

    /// The sample of this name with exactly these labels; 0 where there is none yet.
    fn of(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let mut labels: Vec<_> = labels.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        labels.sort();
        self.samples.get(&(name.to_owned(), labels)).copied().unwrap_or(0.0)
    }
}

/// What stands between the brackets.
fn labels(text: &str) -> Vec<(String, String)> {
    let (mut found, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{text}"));
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next() {
                Some((_, '\\')) => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, c @ ('\\' | '"'))) => value.push(c),
                    other => panic!("{other:?} is no escape: {text}"),
                },
                Some((at, '"')) => break at,
                Some((_, c)) => value.push(c),
                None => panic!("it has no end: {text}"),
            }
        };
        found.push((name.to_owned(), value));
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    found.sort();
    found
}

/// A GET with these headers: status, headers and body.
fn get(daemon: &Daemon, headers: &str) -> (u16, String, String) {
    let mut socket = TcpStream::connect(daemon.address).expect("it accepts");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
    let host =
        if headers.contains("Host:") { String::new() } else { format!("Host: {}\r\n", daemon.address) };
    write!(socket, "GET /metrics HTTP/1.1\r\n{host}{headers}Connection: close\r\n\r\n").expect("it is sent");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("it answers");
    let answer = String::from_utf8(answer).expect("it is text");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (status, head.to_lowercase(), body.to_owned())
}

fn scrape_with(daemon: &Daemon, headers: &str) -> Exposition {
    let (status, head, body) = get(daemon, headers);
    assert_eq!(status, 200, "{head}\n{body}");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(!head.contains("transfer-encoding: chunked"), "{head}");
    Exposition::parse(&body)
}

fn scrape(daemon: &Daemon) -> Exposition {
    scrape_with(daemon, "")
}

#[test]
fn what_was_done_is_counted() {
    let daemon = Daemon::start();
    let before = scrape(&daemon);
    for counter in ["clawmux_runs_started_total", "clawmux_log_events_total"] {
        assert_eq!(before.of(counter, &[]), 0.0, "{counter}");
    }
    let mut client = Client::connect(daemon.address);
    let mut tokens = (0, 0);
    for prompt in ["hello there", "/tool echo {\"text\":\"hi\"}", "/fail"] {
        let stream = client.chat("alice", prompt);
        if prompt != "/fail" {
            let (input, output) = stream.usage();
            tokens = (tokens.0 + input, tokens.1 + output);
        }
    }
    let now = eventually("the last run to be counted", || {
        let now = scrape(&daemon);
        (now.of("clawmux_runs_under_way", &[]) == 0.0).then_some(now)
    });
    assert_eq!(now.of("clawmux_runs_started_total", &[]), 3.0);
    assert_eq!(now.of("clawmux_runs_ended_total", &[("outcome", "completed")]), 2.0);
    assert_eq!(now.of("clawmux_runs_ended_total", &[("outcome", "failed")]), 1.0);
    assert_eq!(now.of("clawmux_runs_ended_total", &[("outcome", "aborted")]), 0.0);
    assert_eq!(now.of("clawmux_run_duration_seconds_count", &[]), 3.0);
    assert_eq!(now.of("clawmux_tool_calls_total", &[("tool", "echo"), ("outcome", "ok")]), 1.0);
    assert_eq!(now.of("clawmux_tool_call_duration_seconds_count", &[("tool", "echo")]), 1.0);
    // The step that called the tool, the one after it, the plain one and the one that failed.
    assert_eq!(now.of("clawmux_provider_calls_total", &[("provider", "offline")]), 4.0);
    let errors: f64 = sum(&now, "clawmux_provider_errors_total");
    assert_eq!(errors, 1.0);
    assert_eq!(now.of("clawmux_sessions_made_total", &[]), 1.0);
    assert_eq!(now.of("clawmux_sessions_awake", &[]), 1.0);
    assert_eq!(now.of("clawmux_connections", &[("protocol", "exoclaw")]), 1.0);
    assert!(now.of("clawmux_log_durable_commit_duration_seconds_count", &[]) >= 3.0);
    assert!(now.of("clawmux_log_sync_duration_seconds_count", &[]) >= 3.0);
    assert!(now.of("clawmux_log_written_bytes_total", &[]) > 0.0);
    assert_eq!(now.of("clawmux_log_writable", &[]), 1.0);
    assert!(now.of("clawmux_process_resident_memory_bytes", &[]) > 1e6);
    assert!(now.of("clawmux_process_open_fds", &[]) > 5.0);
    assert_eq!(now.of("clawmux_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    for arbiter in ["main", "connections-1"] {
        let seen = |name: &str| now.samples.contains_key(&(name.to_owned(), vec![label("arbiter", arbiter)]));
        assert!(
            seen("clawmux_arbiter_lag_seconds_sum") && seen("clawmux_arbiter_blocked_seconds"),
            "{arbiter}"
        );
    }
    assert!(answers(&now).values().all(|answers| *answers == 1.0), "{:?}", answers(&now));
    // Of the run that failed the client is told nothing: what it cost is counted nevertheless.
    let spent = |direction: &str| {
        let told = now.samples.iter().filter(|((name, labels), _)| {
            name == "clawmux_tokens_total" && labels.contains(&label("direction", direction))
        });
        told.map(|(_, value)| *value).sum::<f64>()
    };
    let of_store: f64 = spent("input") + spent("output");
    assert!(spent("input") >= tokens.0 as f64 && spent("output") >= tokens.1 as f64, "{tokens:?}");
    assert_eq!(of_store, now.of("clawmux_budget_day_tokens", &[]), "as the budgets count");

    client.chat("alice", "again");
    let later = eventually("it to be counted", || {
        let later = scrape(&daemon);
        (later.of("clawmux_runs_ended_total", &[("outcome", "completed")]) == 3.0).then_some(later)
    });
    for ((name, labels), value) in &now.samples {
        let (_, kind) = now.metric_of(name);
        if kind == "counter" || kind == "histogram" {
            let after = later.samples.get(&(name.clone(), labels.clone()));
            assert!(after.is_some_and(|after| after >= value), "{name} {labels:?}: {value} then {after:?}");
        }
    }
}

fn label(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn sum(read: &Exposition, name: &str) -> f64 {
    read.samples.iter().filter(|((sample, _), _)| sample == name).map(|(_, value)| *value).sum()
}

fn answers(read: &Exposition) -> BTreeMap<&str, f64> {
    let all = read.samples.iter().filter(|((name, _), _)| name == "clawmux_actor_answers");
    all.map(|((_, labels), value)| (labels[0].1.as_str(), *value)).collect()
}

#[test]
fn what_is_under_way_and_what_waits_is_told() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    let [running, second, third] =
        ["/slow 600", "second", "third"].map(|prompt| client.prompt("alice", prompt));
    let under_way = |expected: (f64, f64)| {
        eventually(&format!("{expected:?} to run and to wait"), || {
            let now = scrape(&daemon);
            let at = (now.of("clawmux_runs_under_way", &[]), now.of("clawmux_runs_queued", &[]));
            (at == expected).then_some(now)
        })
    };
    // Runs are counted when they are in the log: a little later, and never too many.
    let counted = |begun: f64, ended: [f64; 3]| {
        eventually(&format!("{begun} runs to have begun, {ended:?} to have ended"), || {
            let now = scrape(&daemon);
            let started = now.of("clawmux_runs_started_total", &[]);
            assert!(started <= begun, "who waits has not begun: {started}");
            let outcomes = ["aborted", "completed", "failed"];
            let told = outcomes.map(|outcome| now.of("clawmux_runs_ended_total", &[("outcome", outcome)]));
            ((started, told) == (begun, ended)).then_some(now)
        })
    };
    under_way((1.0, 2.0));
    let busy = counted(1.0, [0.0; 3]);
    assert_eq!(busy.of("clawmux_run_duration_seconds_count", &[]), 0.0);
    assert!(client.abort(&running));
    for prompt in [running, second, third] {
        client.stream(&prompt);
    }
    under_way((0.0, 0.0));
    counted(3.0, [1.0, 2.0, 0.0]);
}

#[test]
fn where_a_credential_is_required_metrics_want_one_that_may_read() {
    let token = "the-shared-operator-token";
    let daemon = Daemon::with_env("", &[("CLAWMUX_TOKEN", token)]);
    for headers in [
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: Basic dGhlOnNoYXJlZA==\r\n",
        "Authorization: Bearer\r\n",
        &format!("Authorization: Bearer {token}\r\nAuthorization: Bearer {token}\r\n"),
        &format!("Authorization: {token}\r\n"),
    ] {
        let (status, head, body) = get(&daemon, headers);
        assert_eq!(status, 401, "{headers}{body}");
        assert!(head.contains("www-authenticate: bearer") && !body.contains("clawmux_"), "{head}{body}");
    }
    scrape_with(&daemon, &format!("Authorization: bearer {token}\r\n"));
    let made = |args: &[&str]| {
        daemon.stdout_of(&[&["token", "create", "--yes", "--name"], args].concat()).trim().to_owned()
    };
    let reader = made(&["prometheus", "--role", "readonly"]);
    scrape_with(&daemon, &format!("Authorization: Bearer {reader}\r\n"));
    let blind = made(&["pairer", "--scope", "operator.pairing"]);
    let (status, _, body) = get(&daemon, &format!("Authorization: Bearer {blind}\r\n"));
    assert_eq!(status, 403, "{body}");
    eventually("its use to be noted", || {
        let listed = daemon.rows_of(&["tokens"]);
        let of = |name: &str| listed.iter().find(|token| token["name"] == name).expect("it is listed");
        of("prometheus")["origin"] == "127.0.0.1" && of("pairer")["used_ms"].is_null()
    });
}

#[test]
fn other_pages_and_other_hosts_are_told_nothing() {
    let daemon = Daemon::start();
    let port = daemon.address.port();
    for headers in [
        "Origin: https://evil.example\r\n".to_owned(),
        format!("Host: evil.example:{port}\r\n"),
        "X-Forwarded-For: 1.2.3.4\r\n".to_owned(),
    ] {
        let (status, _, body) = get(&daemon, &headers);
        assert_eq!(status, 403, "{headers}{body}");
    }
    scrape_with(&daemon, &format!("Host: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n"));
}
