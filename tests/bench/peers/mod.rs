//! Other people's programs, installed when they are asked for: `cargo bench --bench bench -- --peers`.
//!
//! A WebSocket library that echoes, and a proxy of models, beside the daemon in the same rounds; then the
//! [gateways](openclaw) that the OpenClaw clients were made for.

mod openclaw;

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::figures::{Contender, Figure, percentile, rounds};
use crate::load::dialect::Dialect;
use crate::load::model::Model;
use crate::load::pings::Pings;
use crate::load::streams::{Seen, Streams};
use crate::npm::Generation;
use crate::process::Process;
use crate::rows::{NO_LIMITS, columns, home, on_model};
use crate::{pypi, report};

const ROUNDS: usize = 5;

/// Installs and measures them.
pub fn compare() {
    println!("{}", report::terminal_head());
    for measure in [ws, litellm] {
        measure().iter().flat_map(report::lines).for_each(|line| println!("{}", report::terminal(&line)));
    }
    println!();
    openclaw::compare();
}

/// `ws` on Node, as clawdbot brings both along.
fn ws() -> Vec<Figure> {
    const ECHO: &str = "const { WebSocketServer } = require('ws');
        const server = new WebSocketServer({ port: 0, host: '127.0.0.1', perMessageDeflate: false }, () =>
            console.log(`http://127.0.0.1:${server.address().port}`));
        server.on('connection', (socket) => {
            socket.on('message', (data) => socket.send(data.toString()));
        });";
    let home = home();
    let mut command = Command::new(Generation::Clawdbot.node());
    command.args(["-e", ECHO]).env("NODE_PATH", Generation::Clawdbot.modules());
    let (node, daemon) = (Process::spawn(command, Path::new("")), Process::daemon(home.path(), NO_LIMITS));
    let contender = |process: &Process, dialect| {
        let mut pings = Pings::connect(process, 64, dialect, Dialect::Exoclaw);
        pings.cpu_us(10_000, 1);
        Box::new(move || vec![pings.cpu_us(40_000, 1)]) as Contender<'static>
    };
    let contenders = vec![contender(&daemon, Dialect::Exoclaw), contender(&node, Dialect::Bare)];
    let [ours, theirs] = columns(rounds(ROUNDS, contenders)).map(|mut figures| figures.remove(0));
    vec![Figure::new("ping 64x1", "CPU", "µs", ours).beside("ws on Node", theirs, None)]
}

/// LiteLLM's proxy, which streams events over HTTP.
fn litellm() -> Vec<Figure> {
    const STREAMS: usize = 16;
    const TOKENS: usize = 100;
    let (model, home) = (Model::new(TOKENS, Duration::from_millis(20)), home());
    let daemon = Process::daemon(home.path(), &on_model(&model));
    let config = home.path().join("litellm.yaml");
    let text = format!(
        "model_list:\n  - model_name: bench\n    litellm_params:\n      model: openai/bench\n      \
         api_base: http://{}/v1\n      api_key: none\n",
        model.address
    );
    std::fs::write(&config, text).expect("the configuration is written");
    let address = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let python = pypi::with(LITELLM);
    let mut command = Command::new(python.with_file_name("litellm"));
    command.arg("--config").arg(&config).args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
    command
        // It serves without a key only where it is told so.
        .env("LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY", "true")
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .env("LITELLM_TELEMETRY", "False")
        .env("HOME", home.path());
    let theirs = Process::at(command, address);
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(120), "LiteLLM does not start");
        std::thread::sleep(Duration::from_millis(100));
    }
    let model = &model;
    let contender = |process, dialect| {
        let go = move || {
            let streams = Streams::connect(process, [dialect; STREAMS]);
            let Seen { cpu_us, ages_us, .. } = streams.run_steady(model, STREAMS * TOKENS);
            vec![cpu_us, percentile(&ages_us, 0.5), percentile(&ages_us, 0.99)]
        };
        go();
        Box::new(go) as Contender<'_>
    };
    let contenders = vec![contender(&daemon, Dialect::Exoclaw), contender(&theirs, Dialect::Events)];
    let [ours, theirs] = columns(rounds(ROUNDS, contenders));
    let figures = ours.into_iter().zip(theirs).zip(["CPU", "age p50", "age p99"]);
    figures
        .map(|((ours, theirs), kind)| {
            Figure::new("token paced 16@50", kind, "µs", ours).beside("LiteLLM", theirs, None)
        })
        .collect()
}

/// The last one of its line that is asked about here.
const LITELLM: &str = "litellm[proxy]==1.106.12";
