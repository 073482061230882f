//! The daemon as a whole: how it starts, watches over its parts and stops.

use std::path::Path;

use super::*;
use crate::configuration::{Adopt, Commit};
use crate::hub::Sabotage;
use crate::store::Stick;

fn setup(home: &Path) -> GatewaySetup {
    let mut config = Config::default();
    config.gateway.listen = vec![([127, 0, 0, 1], 0).into()];
    config.store.path = home.join("clawmux.db");
    GatewaySetup {
        config: Arc::new(config),
        home: home.to_owned(),
        socket: None,
        passed: Arc::default(),
        xeno_home: None,
        version: "test",
        layers: Layers::default(),
        log: Arc::default(),
        log_filter: None,
        keeper: "/nowhere".into(),
        compiler: Compiler::Here,
        has_own_credentials: false,
    }
}

#[actix::test]
async fn a_child_that_is_gone_is_named_and_the_whole_can_be_started_anew() {
    let home = tempfile::tempdir().unwrap();
    let running = start(setup(home.path())).await.unwrap();
    let second = start(setup(home.path())).await.unwrap_err();
    assert_eq!(second.code, ErrorCode::Conflict, "one daemon per home: {second}");

    running.gateway.send(Sabotage).await.unwrap();
    let why = tokio::time::timeout(Duration::from_secs(60), running.failed).await.unwrap().unwrap();
    assert!(why.message.contains("hub"), "{why}");
    let tree = running.gateway.send(Observe).await.unwrap();
    let silent = tree.children.iter().filter_map(|child| Some((&*child.actor, child.silent.as_deref()?)));
    assert_eq!(silent.collect::<Vec<_>>(), [("hub", "it is gone")], "the others say how they are");
    running.gateway.send(Stop).await.unwrap();

    let again = start(setup(home.path())).await.unwrap();
    again.gateway.send(Stop).await.unwrap();
}

#[actix::test]
async fn what_can_not_be_committed_is_not_gone_over_to_and_the_last_good_one_is_known() {
    let home = tempfile::tempdir().unwrap();
    let running = start(setup(home.path())).await.unwrap();
    let mut other = (*running.config.get()).clone();
    other.limits.queue = 9;
    other.store.path = home.path().join("other.db");
    let adopt = async |config: &Config, commit| {
        running.gateway.send(Adopt { config: config.clone(), commit }).await.unwrap()
    };
    let full: Commit = Box::new(|| Err(ErrorCode::Unavailable.error("the disk is full")));
    assert_eq!(adopt(&other, Some(full)).await.unwrap_err().message, "the disk is full");
    let mut lost = other.clone();
    lost.plugins.push(clawmux_core::config::Plugin {
        name: "lost".into(),
        path: Some("lost.wasm".into()),
        capabilities: None,
        secrets: std::collections::BTreeMap::new(),
        limits: clawmux_core::tools::plugin::CallLimits::default(),
        concurrent_calls: 0,
        sha256: None,
        may_be_unsigned: false,
        approval: clawmux_core::config::Approval::Never,
        settings: std::collections::BTreeMap::new(),
    });
    assert!(adopt(&lost, None).await.unwrap_err().message.contains("lost.wasm"));
    assert_eq!(*running.config.get(), *setup(home.path()).config, "nothing has changed");

    adopt(&other, None).await.unwrap();
    let now = running.config.get();
    assert_eq!(now.limits.queue, 9);
    assert_eq!(now.store.path, home.path().join("clawmux.db"), "it takes a restart");
    running.gateway.send(Stop).await.unwrap();
    assert!(adopt(&other, None).await.unwrap_err().message.contains("stopping"));
    let again = GatewaySetup { config: now, ..setup(home.path()) };
    let again = start(again).await.unwrap();
    assert_eq!(again.config.get().limits.queue, 9);
    again.gateway.send(Stop).await.unwrap();
}

#[actix::test]
async fn what_is_blocked_has_no_pulse() {
    let home = tempfile::tempdir().unwrap();
    let running = start(setup(home.path())).await.unwrap();
    let pulse = |within_ms| {
        let asked = running.gateway.send(Pulse { within: Duration::from_millis(within_ms) });
        async { asked.await.unwrap() }
    };
    const LONG: u64 = 60_000;
    pulse(LONG).await.unwrap();

    let (go_on, until) = std::sync::mpsc::channel::<()>();
    assert!(running.arbiters.next().spawn_fn(move || {
        let _ = until.recv();
    }));
    let error = pulse(200).await.unwrap_err();
    assert!(error.code == ErrorCode::Timeout && error.message.starts_with("1 of "), "{error}");
    drop(go_on);
    pulse(LONG).await.unwrap();

    let (go_on, until) = std::sync::mpsc::channel();
    running.gateway.send(Stick(until)).await.unwrap();
    let error = pulse(200).await.unwrap_err();
    assert!(error.message.contains("the store did not answer"), "{error}");
    drop(go_on);
    pulse(LONG).await.unwrap();
    running.gateway.send(Stop).await.unwrap();
    pulse(LONG).await.unwrap();
}

impl Handler<Stick> for Gateway {
    type Result = ();

    fn handle(&mut self, stick: Stick, _: &mut Self::Context) {
        self.store.try_send(stick).unwrap();
    }
}

#[actix::test]
async fn sockets_that_were_passed_win_and_are_taken_as_they_are() {
    let home = tempfile::tempdir().unwrap();
    let everywhere = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let mut asked = setup(home.path());
    asked.passed = Arc::new(Passed::of(vec![everywhere], None));
    let refused = start(asked).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden, "nobody is let in by default: {refused}");

    let home = tempfile::tempdir().unwrap();
    let here = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = here.local_addr().unwrap();
    let mut asked = setup(home.path());
    // Where nobody can listen.
    let mut config = Config::clone(&asked.config);
    config.gateway.listen = vec![([192, 0, 2, 1], 1).into()];
    asked.config = Arc::new(config);
    asked.passed = Arc::new(Passed::of(vec![here], None));
    let running = start(asked.clone()).await.unwrap();
    assert_eq!(running.addresses, [address]);
    running.gateway.send(Stop).await.unwrap();
    // They are there for the next daemon, and whoever comes meanwhile waits for it.
    let waiting = std::net::TcpStream::connect(address).unwrap();
    let again = start(asked).await.unwrap();
    again.gateway.send(Stop).await.unwrap();
    drop(waiting);
}

impl Handler<Sabotage> for Gateway {
    type Result = ();

    fn handle(&mut self, sabotage: Sabotage, _: &mut Self::Context) {
        self.hub.try_send(sabotage).unwrap();
    }
}
