//! The sandbox under guests that behave and guests that do not.

use super::*;
use crate::plugin::{Panic, Progress};
use crate::sandbox::Limits;
use clawmux_core::tools::call::ToolResult;
mod grants;

use std::borrow::Cow;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// The plugins that ship, or those rebuilt by CI (`plugins/build FOLDER`).
fn shipped() -> Vec<Embedded> {
    let mut plugins = source::embedded();
    if let Some(folder) = std::env::var_os("CLAWMUX_TEST_PLUGINS") {
        for plugin in &mut plugins {
            let file = Path::new(&folder).join(plugin.name).join(plugin.name);
            plugin.module = Cow::Owned(fs::read(file.with_extension("wasm")).unwrap());
            plugin.manifest = Cow::Owned(fs::read_to_string(file.with_extension("toml")).unwrap());
        }
    }
    plugins
}

/// A tool whose `describe` answers with an empty object and whose `handle_tool_call` is `body`.
fn guest(rest: &str, body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
            (import "extism:host/env" "store_u8" (func $store (param i64 i32)))
            (import "extism:host/env" "output_set" (func $output_set (param i64 i64)))
            (import "extism:host/env" "input_load_u8" (func $input (param i64) (result i32)))
            (import "extism:host/env" "input_length" (func $input_length (result i64)))
            {rest}
            (func (export "describe") (result i32) (local $at i64)
                (local.set $at (call $alloc (i64.const 2)))
                (call $store (local.get $at) (i32.const 123))
                (call $store (i64.add (local.get $at) (i64.const 1)) (i32.const 125))
                (call $output_set (local.get $at) (i64.const 2)) i32.const 0)
            (func (export "handle_tool_call") (result i32) {body}))"#
    );
    wat::parse_str(text).unwrap()
}

const SPIN: &str = "(loop $l (br $l)) i32.const 0";

/// Spins where its input is longer than `{}`, else answers nothing.
const SPIN_IF_ASKED: &str =
    "(if (i64.gt_u (call $input_length) (i64.const 2)) (then (loop $l (br $l)))) i32.const 0";

fn entry(name: &str, path: &str, limits: Limits) -> config::Plugin {
    config::Plugin {
        approval: config::Approval::Never,
        settings: std::collections::BTreeMap::new(),
        name: name.into(),
        path: Some(path.into()),
        capabilities: None,
        secrets: BTreeMap::new(),
        limits,
        concurrent_calls: 0,
        sha256: None,
        may_be_unsigned: false,
    }
}

/// A home with these modules in `plugins/`.
fn home(modules: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("plugins")).unwrap();
    for (name, module) in modules {
        fs::write(home.path().join("plugins").join(name), module).unwrap();
    }
    home
}

/// All tests share one cache beside their binary, so that each compiles only what is new.
fn cache() -> Arc<Cache> {
    static CACHE: LazyLock<Arc<Cache>> = LazyLock::new(|| {
        Arc::new(Cache::new(std::env::current_exe().unwrap().with_file_name("sandbox-test-cache")))
    });
    Arc::clone(&CACHE)
}

fn supervisor(home: &tempfile::TempDir, plugins: Vec<config::Plugin>) -> SandboxSupervisor {
    SandboxSupervisor::new(plugins, home.path().to_path_buf())
        .with_embedded(shipped())
        .with_cache(cache())
        .with_threads(4)
}

fn start(home: &tempfile::TempDir, plugins: Vec<config::Plugin>) -> Addr<SandboxSupervisor> {
    supervisor(home, plugins).start()
}

fn call(name: &str, input: Value) -> CallTool {
    CallTool {
        session: SessionKey::new("main", "test", "a", "main").unwrap(),
        run: "run".into(),
        call: ToolCall { id: "call".into(), name: name.into(), input },
    }
}

async fn result(to: &Addr<SandboxSupervisor>, name: &str, input: Value) -> ToolResult {
    to.send(call(name, input)).await.unwrap().result().await.0
}

async fn error(to: &Addr<SandboxSupervisor>, name: &str, input: Value) -> String {
    let result = result(to, name, input).await;
    assert!(result.is_error, "{name}: {}", result.content);
    result.content
}

async fn state_of(to: &Addr<SandboxSupervisor>, plugin: &str) -> Value {
    let observed = to.send(Observe).await.unwrap();
    let child = observed.children.into_iter().find(|child| child.actor == format!("plugin {plugin}"));
    child.unwrap_or_else(|| panic!("no plugin {plugin}")).state
}

/// Asks until `wanted` holds of the plugin's figures: guests end in their own time.
async fn until(to: &Addr<SandboxSupervisor>, plugin: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    loop {
        let state = state_of(to, plugin).await;
        if wanted(&state) {
            return state;
        }
        tokio::task::yield_now().await;
    }
}

#[actix::test]
async fn the_shipped_tools_work_and_describe_themselves() {
    let home = home(&[]);
    let supervisor = supervisor(&home, Vec::new());
    let (tools, to) = (supervisor.tools(), supervisor.start());
    for name in ["echo", "clock"] {
        until(&to, name, |state| state["state"] == "loaded").await;
    }
    let tools = tools.find(["clock".into(), "nothing".into(), "echo".into()].iter()).await.unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["clock", "echo"], "in the order asked for");
    assert_eq!(tools[1].input_schema["properties"]["text"]["type"], "string");

    let text = "hi \"İİİİ\" \\ \n\u{0} 🦀";
    let echoed = result(&to, "echo", json!({"text": text})).await;
    assert_eq!((echoed.content.as_str(), echoed.is_error, echoed.call.as_str()), (text, false, "call"));
    let long = "x".repeat(500_000);
    assert_eq!(result(&to, "echo", json!({"text": long})).await.content, long);
    assert_eq!(
        error(&to, "echo", json!({})).await,
        "plugin echo does not take that input: \"text\" is a required property"
    );

    let before = crate::runtime::clock::now().as_millis();
    let told = result(&to, "clock", json!({"zone": "ignored"})).await;
    let after = crate::runtime::clock::now().as_millis();
    assert!(!told.is_error, "{}", told.content);
    let told = millis_of(&told.content);
    assert!((before..=after).contains(&told), "{before} <= {told} <= {after}");

    let list = to.send(Typed(ListPlugins)).await.unwrap().unwrap();
    assert_eq!(list.len(), 2);
    assert_eq!((list[0].name.as_str(), list[0].version.as_deref()), ("clock", Some("0.1.0")));
    assert_eq!(
        (&list[0].capabilities, &list[1].capabilities),
        (&vec!["host_function:clock".to_owned()], &vec![])
    );
    assert_eq!(to.send(CountPlugins).await.unwrap(), 2);
    assert!(to.send(IsIdempotent("clock".into())).await.unwrap());
    assert!(!to.send(IsIdempotent("nothing".into())).await.unwrap());
}

/// Milliseconds since the epoch of a time such as `2026-02-08T09:30:00.250Z`, by counting years
/// and months: another way than the plugin's.
fn millis_of(text: &str) -> u64 {
    assert!(text.len() == 24 && text.ends_with('Z'), "{text}");
    let number = |range: std::ops::Range<usize>| text[range].parse::<u64>().unwrap();
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let february = if leap(year) { 29 } else { 28 };
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let years: u64 = (1970..year).map(|year| if leap(year) { 366 } else { 365 }).sum();
    let days = years + months[..month as usize - 1].iter().sum::<u64>() + day - 1;
    ((days * 24 + number(11..13)) * 60 + number(14..16)) * 60_000 + number(17..19) * 1000 + number(20..23)
}

#[actix::test]
async fn input_that_is_no_object_and_tools_that_are_not_there_are_answered() {
    let home = home(&[]);
    let to = start(&home, Vec::new());
    for input in [json!("{\"text\": tru"), json!(null), json!([1]), json!(7)] {
        assert_eq!(
            error(&to, "echo", input).await,
            "the input of echo is not a JSON object, see its input_schema"
        );
    }
    let huge = json!({"text": "x".repeat(INPUT_BYTES_MAX)});
    assert!(error(&to, "echo", huge).await.ends_with("(limit 1048576)"));
    assert_eq!(error(&to, "İİİİ", json!({})).await, "there is no tool \"İİİİ\"");
}

#[actix::test]
async fn every_limit_ends_the_call_with_its_own_words_and_the_plugin_lives_on() {
    let limits = Limits { fuel: 1_000_000, memory_mb: 4, ..Limits::default() };
    let home = home(&[
        ("fuel.wasm", guest("", SPIN_IF_ASKED)),
        (
            "grow.wasm",
            guest("(memory 1)", "(loop $l (drop (memory.grow (i32.const 1))) (br $l)) i32.const 0"),
        ),
        ("trap.wasm", guest("", "unreachable")),
        (
            "big.wasm",
            guest("", "(call $output_set (call $alloc (i64.const 1100000)) (i64.const 1100000)) i32.const 0"),
        ),
        ("code.wasm", guest("", "i32.const 3")),
    ]);
    let plugins = ["fuel", "grow", "trap", "big", "code"]
        .map(|name| entry(name, &format!("plugins/{name}.wasm"), limits));
    let to = start(&home, plugins.into());
    for _ in 0..2 {
        assert_eq!(
            error(&to, "fuel", json!({"spin": 1})).await,
            "plugin fuel ran out of fuel (limit 1000000)"
        );
        assert_eq!(error(&to, "grow", json!({})).await, "plugin grow ran out of memory (limit 4 MiB)");
        assert_eq!(
            error(&to, "trap", json!({})).await,
            "plugin trap crashed: wasm trap: wasm `unreachable` instruction executed"
        );
        assert_eq!(
            error(&to, "big", json!({})).await,
            "plugin big answered with 1100000 bytes (limit 1048576)"
        );
        assert_eq!(error(&to, "code", json!({})).await, "plugin code failed: Returned non-zero exit code: 3");
        assert!(!result(&to, "fuel", json!({})).await.is_error, "the plugin is usable afterwards");
    }
    let state = state_of(&to, "fuel").await;
    assert_eq!((&state["calls_total"], &state["calls_failed_total"]), (&json!(4), &json!(2)), "{state}");
    assert_eq!(state["engines_compiled_total"], 1, "one call at a time needs one engine: {state}");
}

#[actix::test]
async fn a_time_limit_ends_one_call_and_no_other_of_the_same_plugin() {
    let limits = Limits { fuel: u64::MAX, timeout: Duration::from_millis(1000), ..Limits::default() };
    let home = home(&[("spin.wasm", guest("", SPIN_IF_ASKED))]);
    let to = start(&home, vec![entry("spin", "plugins/spin.wasm", limits)]);
    let spinning = actix::spawn({
        let to = to.clone();
        async move { error(&to, "spin", json!({"spin": 1})).await }
    });
    until(&to, "spin", |state| state["calls_running"] == 1).await;
    let mut good = 0;
    while !spinning.is_finished() {
        let result = result(&to, "spin", json!({})).await;
        assert!(!result.is_error, "call {good}: {}", result.content);
        good += 1;
        tokio::task::yield_now().await;
    }
    assert!(good > 0);
    assert_eq!(spinning.await.unwrap(), "plugin spin took longer than 1000 ms");
    let state = until(&to, "spin", |state| state["calls_running"] == 0).await;
    assert_eq!(state["calls_cut_off_total"], 1, "{state}");
    assert!(!result(&to, "spin", json!({})).await.is_error);
}

#[actix::test]
async fn a_call_that_nobody_waits_for_any_more_frees_its_thread() {
    let limits = Limits { fuel: u64::MAX, timeout: Duration::from_secs(3600), ..Limits::default() };
    let home = home(&[("spin.wasm", guest("", SPIN))]);
    let to = start(&home, vec![entry("spin", "plugins/spin.wasm", limits)]);
    // Two run at a time with four threads; the others wait in line.
    let mut calls: Vec<Calling> = Vec::new();
    for _ in 0..5 {
        calls.push(to.send(call("spin", json!({}))).await.unwrap());
    }
    until(&to, "spin", |state| state["calls_running"] == 2 && state["calls_waiting"] == 3).await;
    assert_eq!(calls[0].next().await, Some(Progress::Begun));
    drop(calls);
    let state = until(&to, "spin", |state| state["calls_running"] == 0).await;
    assert_eq!(state["calls_waiting"], 0, "{state}");
    assert_eq!((&state["calls_total"], &state["last_error"]), (&json!(2), &json!("aborted")), "{state}");
}

#[actix::test]
async fn a_spinning_start_function_is_answered_in_time_and_ends_by_fuel() {
    let limits = Limits { fuel: 300_000_000, timeout: Duration::from_millis(50), ..Limits::default() };
    let home = home(&[("start.wasm", guest("(func $s (loop $l (br $l))) (start $s)", SPIN))]);
    let to = start(&home, vec![entry("start", "plugins/start.wasm", limits)]);
    assert_eq!(error(&to, "start", json!({})).await, "plugin start: describe ran out of fuel");
    assert_eq!(state_of(&to, "start").await["state"], "failed");
}

#[actix::test]
async fn spinning_plugins_on_every_core_delay_neither_the_arbiter_nor_other_plugins() {
    let limits = Limits { fuel: u64::MAX, timeout: Duration::from_secs(3600), ..Limits::default() };
    let home = home(&[("spin.wasm", guest("", SPIN))]);
    let to = start(&home, vec![entry("spin", "plugins/spin.wasm", limits)]);
    let spinning: Vec<_> = (0..40)
        .map(|_| {
            let to = to.clone();
            actix::spawn(async move { result(&to, "spin", json!({})).await })
        })
        .collect();
    until(&to, "spin", |state| state["calls_running"] == 2 && state["calls_waiting"] == 38).await;
    for i in 0..20 {
        let text = format!("call {i}");
        assert_eq!(result(&to, "echo", json!({"text": text})).await.content, text);
    }
    assert!(spinning.iter().all(|call| !call.is_finished()), "they still spin");
    spinning.iter().for_each(|call| call.abort());
    until(&to, "spin", |state| state["calls_running"] == 0 && state["calls_waiting"] == 0).await;
}

#[actix::test]
async fn a_full_queue_has_an_answer() {
    let limits = Limits { fuel: u64::MAX, timeout: Duration::from_secs(3600), ..Limits::default() };
    let home = home(&[("spin.wasm", guest("", SPIN))]);
    let to = start(&home, vec![entry("spin", "plugins/spin.wasm", limits)]);
    until(&to, "spin", |state| state["state"] == "loaded").await;
    let most = 2 + crate::plugin::WAITING_MAX;
    let spinning: Vec<_> = (0..most)
        .map(|_| {
            let to = to.clone();
            actix::spawn(async move { result(&to, "spin", json!({})).await })
        })
        .collect();
    until(&to, "spin", |state| state["calls_waiting"] == crate::plugin::WAITING_MAX).await;
    assert_eq!(
        error(&to, "spin", json!({})).await,
        "plugin spin is busy: 64 calls wait already, try again later"
    );
    spinning.iter().for_each(|call| call.abort());
    until(&to, "spin", |state| state["calls_running"] == 0 && state["calls_waiting"] == 0).await;
}

#[actix::test]
async fn plugins_are_loaded_and_unloaded_at_run_time() {
    let home = home(&[("good.wasm", guest("", "i32.const 0")), ("bad.wasm", b"\0asm nothing".to_vec())]);
    fs::write(home.path().join("secret.wasm"), guest("", "i32.const 0")).unwrap();
    let supervisor = supervisor(&home, Vec::new());
    let (tools, to) = (supervisor.tools(), supervisor.start());
    let load = |name: &str, path: Option<&str>| {
        Typed(LoadPlugin { name: name.into(), path: path.map(str::to_owned) })
    };
    for (name, path, code) in [
        ("good", Some("../secret.wasm"), ErrorCode::Forbidden),
        ("good", Some("nothing.wasm"), ErrorCode::NotFound),
        ("good", Some("bad.wasm"), ErrorCode::InvalidRequest),
        ("good", None, ErrorCode::NotFound),
        ("İİİİ", Some("good.wasm"), ErrorCode::InvalidRequest),
        ("echo", None, ErrorCode::Conflict),
    ] {
        let error = to.send(load(name, path)).await.unwrap().unwrap_err();
        assert_eq!(error.code, code, "{name} {path:?}: {error}");
    }
    assert_eq!(to.send(CountPlugins).await.unwrap(), 2, "what failed leaves nothing behind");

    let summary = to.send(load("good", Some("good.wasm"))).await.unwrap().unwrap();
    assert_eq!((summary.name.as_str(), summary.version, summary.capabilities), ("good", None, vec![]));
    assert!(!result(&to, "good", json!({})).await.is_error);
    let again = to.send(load("good", Some("good.wasm"))).await.unwrap().unwrap_err();
    assert_eq!(again.code, ErrorCode::Conflict, "{again}");

    to.send(Typed(UnloadPlugin { name: "good".into() })).await.unwrap().unwrap();
    assert_eq!(error(&to, "good", json!({})).await, "there is no tool \"good\"");
    let gone = to.send(Typed(UnloadPlugin { name: "good".into() })).await.unwrap().unwrap_err();
    assert_eq!(gone.code, ErrorCode::NotFound);
    to.send(Typed(UnloadPlugin { name: "echo".into() })).await.unwrap().unwrap();
    assert_eq!(tools.find(["echo".into()].iter()).await.unwrap(), []);
    to.send(load("echo", None)).await.unwrap().unwrap();
    assert_eq!(result(&to, "echo", json!({"text": "back"})).await.content, "back");
}

#[actix::test]
async fn calls_under_way_finish_when_their_plugin_is_unloaded() {
    let limits = Limits { fuel: u64::MAX, timeout: Duration::from_millis(200), ..Limits::default() };
    let home = home(&[("spin.wasm", guest("", SPIN))]);
    let to = start(&home, vec![entry("spin", "plugins/spin.wasm", limits)]);
    let spinning = actix::spawn({
        let to = to.clone();
        async move { error(&to, "spin", json!({})).await }
    });
    until(&to, "spin", |state| state["calls_running"] == 1).await;
    to.send(Typed(UnloadPlugin { name: "spin".into() })).await.unwrap().unwrap();
    assert_eq!(spinning.await.unwrap(), "plugin spin took longer than 200 ms", "it went its own way");
}

#[actix::test]
async fn one_that_is_loaded_anew_takes_over_or_leaves_the_old_one_where_it_is() {
    let answers = |letter: u8| {
        let body = format!(
            "(local $at i64) (local.set $at (call $alloc (i64.const 1)))
             (call $store (local.get $at) (i32.const {letter}))
             (call $output_set (local.get $at) (i64.const 1)) i32.const 0"
        );
        guest("", &body)
    };
    let home = home(&[("x.wasm", answers(b'1'))]);
    let file = home.path().join("plugins/x.wasm");
    let to = start(&home, vec![entry("x", "plugins/x.wasm", Limits::default())]);
    let reload = || Typed(ReloadPlugin { name: "x".into() });
    assert_eq!(result(&to, "x", json!({})).await.content, "1");
    fs::write(&file, answers(b'2')).unwrap();
    let (one, other) = futures::join!(to.send(reload()), to.send(reload()));
    let done = [one.unwrap(), other.unwrap()];
    assert!(done.iter().any(Result::is_ok), "one of two at once at least: {done:?}");
    assert_eq!(result(&to, "x", json!({})).await.content, "2");
    assert_eq!(state_of(&to, "x").await["calls_total"], 1, "it is another one");

    fs::write(&file, "nothing").unwrap();
    let error = to.send(reload()).await.unwrap().unwrap_err();
    assert!(error.message.ends_with("; the one there was goes on"), "{error}");
    assert_eq!(result(&to, "x", json!({})).await.content, "2");

    // What somebody takes away meanwhile stays away.
    fs::write(&file, answers(b'3')).unwrap();
    let (reloaded, unloaded) =
        futures::join!(to.send(reload()), to.send(Typed(UnloadPlugin { name: "x".into() })));
    unloaded.unwrap().unwrap();
    assert_eq!(reloaded.unwrap().unwrap_err().code, ErrorCode::Conflict);
    assert_eq!(to.send(reload()).await.unwrap().unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(to.send(CountPlugins).await.unwrap(), 2);
}

#[actix::test]
async fn a_grant_decides_what_a_module_may_import() {
    let module = guest("", "i32.const 0");
    let text = "(module (import \"extism:host/user\" \"clock\" (func (result i64)))
        (func (export \"describe\")) (func (export \"handle_tool_call\")))";
    let home = home(&[("plain.wasm", module), ("wants.wasm", wat::parse_str(text).unwrap())]);
    let mut denied = entry("clock", "unused", Limits::default());
    denied.path = None;
    denied.capabilities = Some(Vec::new());
    let plain = entry("plain", "plugins/plain.wasm", Limits::default());
    let to = start(&home, vec![denied, plain, entry("wants", "plugins/wants.wasm", Limits::default())]);
    let not_granted = "it imports the host function clock, which it was not granted: \
        capabilities = [\"host_function:clock\"]";
    assert_eq!(error(&to, "clock", json!({})).await, format!("plugin clock: {not_granted}"));
    assert_eq!(error(&to, "wants", json!({})).await, format!("plugin wants: {not_granted}"));
    until(&to, "echo", |state| state["state"] == "loaded").await;
    let names =
        to.send(Typed(ListPlugins)).await.unwrap().unwrap().into_iter().map(|plugin| plugin.name.to_string());
    assert_eq!(names.collect::<Vec<_>>(), ["echo", "plain"], "one plugin's refusal is no other's");
}

#[actix::test]
async fn a_crashed_plugin_is_started_anew_until_it_crashes_too_often() {
    struct Crash;

    impl Message for Crash {
        type Result = Option<Addr<Plugin>>;
    }

    impl Handler<Crash> for SandboxSupervisor {
        type Result = Option<Addr<Plugin>>;

        fn handle(&mut self, _: Crash, _: &mut Self::Context) -> Self::Result {
            match &self.plugins.get(&PluginName::from("echo"))?.state {
                State::Running { to, .. } => Some(to.clone()),
                State::OutOfOrder => None,
            }
        }
    }

    let home = home(&[]);
    let to = start(&home, Vec::new());
    for crash in 0..=Restarts::LIMIT {
        let text = format!("after {crash} crashes");
        assert_eq!(result(&to, "echo", json!({"text": text})).await.content, text);
        let plugin = to.send(Crash).await.unwrap().unwrap();
        assert!(plugin.send(Panic).await.is_err(), "the handler panics");
        while to.send(Crash).await.unwrap() == Some(plugin.clone()) {
            tokio::task::yield_now().await;
        }
        assert!(!result(&to, "clock", json!({})).await.is_error, "the others do not notice");
    }
    assert_eq!(
        error(&to, "echo", json!({"text": "x"})).await,
        "plugin echo is out of order: it crashed more than 5 times within 60 s; load it again"
    );
    let observed = to.send(Observe).await.unwrap();
    assert_eq!(observed.state["plugins_out_of_order"], json!(["echo"]));
    let echo = state_of(&to, "echo").await;
    assert_eq!((&echo["state"], &echo["restarts_total"]), (&json!("out of order"), &json!(Restarts::LIMIT)));
    to.send(Typed(LoadPlugin { name: "echo".into(), path: None })).await.unwrap().unwrap();
    assert_eq!(result(&to, "echo", json!({"text": "mended"})).await.content, "mended");
}

/// Not a check but a figure: `cargo test --release -p clawmux-actors -- --ignored --nocapture overhead`.
#[actix::test]
#[ignore = "prints figures"]
async fn overhead_of_a_call() {
    let home = home(&[]);
    let cache = home.path().join("cache");
    for start in ["cold", "cached"] {
        let begun = Instant::now();
        let supervisor = SandboxSupervisor::new(Vec::new(), home.path().to_path_buf())
            .with_cache(Arc::new(Cache::new(cache.clone())));
        let (tools, to) = (supervisor.tools(), supervisor.start());
        let started = begun.elapsed();
        tools.find(["echo".into(), "clock".into()].iter()).await.unwrap();
        println!("{start}: started in {started:?}, both loaded in {:?}", begun.elapsed());
        for (name, input) in [("echo", json!({"text": "hi"})), ("clock", json!({}))] {
            const CALLS: u32 = 2000;
            let begun = Instant::now();
            for _ in 0..CALLS {
                assert!(!result(&to, name, input.clone()).await.is_error);
            }
            println!("{start}: {name} {:?} a call", begun.elapsed() / CALLS);
        }
    }
}

#[actix::test]
async fn a_plugin_that_keeps_failing_is_paused_for_its_owner_alone() {
    let module =
        guest("", "(if (i64.gt_u (call $input_length) (i64.const 2)) (then unreachable)) i32.const 0");
    let home = home(&[("bad.wasm", module)]);
    let to = start(&home, vec![entry("bad", "plugins/bad.wasm", Limits::default())]);
    for _ in 0..5 {
        assert!(error(&to, "bad", json!({ "x": 1 })).await.contains("crashed"));
    }
    let paused = error(&to, "bad", json!({})).await;
    assert!(paused.starts_with("plugin bad is in quarantine for"), "{paused}");
    let state = state_of(&to, "bad").await;
    assert_eq!(state["state"], "quarantined");
    let other = clawmux_core::ids::Owner::Credential("other".into());
    let session = SessionKey::new("main", "test", "a", "main").unwrap().in_space(&other);
    let theirs = to.send(CallTool { session, ..call("bad", json!({})) }).await.unwrap().result().await.0;
    assert!(!theirs.is_error, "{}", theirs.content);
    to.send(Typed(ReloadPlugin { name: "bad".into() })).await.unwrap().unwrap();
    assert!(!result(&to, "bad", json!({})).await.is_error, "what is loaded anew has another chance");
}

#[actix::test]
async fn an_input_that_does_not_fit_is_told_and_not_called() {
    let describes = |schema: &str| {
        let text = format!("{{\"input_schema\":{schema}}}");
        let escaped: String = text.bytes().map(|byte| format!("\\{byte:02x}")).collect();
        let length = text.len();
        let module = format!(
            "(module
                (import \"extism:host/env\" \"alloc\" (func $alloc (param i64) (result i64)))
                (import \"extism:host/env\" \"store_u8\" (func $store_u8 (param i64 i32)))
                (import \"extism:host/env\" \"output_set\" (func $output_set (param i64 i64)))
                (memory 1) (data (i32.const 0) \"{escaped}\")
                (func (export \"describe\") (result i32)
                    (local $p i64) (local $at i32)
                    (local.set $p (call $alloc (i64.const {length})))
                    (loop $l
                        (call $store_u8 (i64.add (local.get $p) (i64.extend_i32_u (local.get $at)))
                            (i32.load8_u (local.get $at)))
                        (local.set $at (i32.add (local.get $at) (i32.const 1)))
                        (br_if $l (i32.lt_u (local.get $at) (i32.const {length}))))
                    (call $output_set (local.get $p) (i64.const {length}))
                    i32.const 0)
                (func (export \"handle_tool_call\") unreachable))"
        );
        wat::parse_str(module).unwrap()
    };
    let home = home(&[
        ("strict.wasm", describes("{\"type\":\"object\",\"required\":[\"name\"]}")),
        ("odd.wasm", describes("{\"type\":\"thing\"}")),
    ]);
    let entry = |name: &str| entry(name, &format!("plugins/{name}.wasm"), Limits::default());
    let to = start(&home, vec![entry("strict"), entry("odd")]);
    let refused = error(&to, "strict", json!({ "nam": 1 })).await;
    assert_eq!(refused, "plugin strict does not take that input: \"name\" is a required property");
    assert!(error(&to, "strict", json!({ "name": 1 })).await.contains("crashed"));
    let odd = error(&to, "odd", json!({})).await;
    assert!(odd.starts_with("plugin odd: describe's input_schema is no JSON Schema: /type: "), "{odd}");
}
