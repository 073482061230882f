//! What the daemon tells its service manager, and when.

use std::time::Duration;

use crate::parent::Parent;
use crate::support::client::Client;
use crate::support::running::Running;
use crate::support::tools::needs;
use crate::support::{daemon, eventually};

fn names(told: &[String]) -> Vec<&str> {
    told.iter().map(|state| state.split('=').next().unwrap()).collect()
}

#[test]
fn ready_alive_reloading_ready_stopping_in_this_order() {
    let parent = Parent::new("").env("WATCHDOG_USEC", "600000");
    let mut service = parent.start();
    // Nothing is told before it takes work.
    assert_eq!(parent.told(), ["READY=1", "STATUS=ready"]);
    let greeted = Client::connect(parent.address());
    assert!(parent.ask("admin.status").unwrap().contains("\"version\""));

    // How busy it is, where that changed, and that it is alive.
    let (mut alive, mut is_told) = (0, false);
    while alive < 3 || !is_told {
        let told = parent.told();
        match &names(&told)[..] {
            ["WATCHDOG"] => alive += 1,
            ["STATUS"] => is_told |= told == ["STATUS=ready: sessions 0, connections 1, running 0"],
            _ => panic!("{told:?}"),
        }
    }

    service.signal("HUP");
    let is_about_life = |told: &[String]| matches!(names(told)[..], ["WATCHDOG"] | ["STATUS"]);
    let change = || std::iter::repeat_with(|| parent.told()).find(|told| !is_about_life(told)).unwrap();
    let after = [change(), change()];
    assert_eq!(names(&after[0]), ["RELOADING", "MONOTONIC_USEC", "STATUS"], "{after:?}");
    let since_boot = std::fs::read_to_string("/proc/uptime").unwrap();
    let since_boot: f64 = since_boot.split(' ').next().unwrap().parse().unwrap();
    let told: f64 = after[0][1].trim_start_matches("MONOTONIC_USEC=").parse().unwrap();
    // The monotonic clock stands still while the machine sleeps, and is not ahead of this one.
    assert!(told > 0.0 && told / 1e6 < since_boot + 1.0, "{told} {since_boot}");
    assert_eq!(names(&after[1]), ["READY", "STATUS"], "{after:?}");

    service.signal("TERM");
    let stopping = change();
    assert_eq!(names(&stopping), ["STOPPING", "EXTEND_TIMEOUT_USEC", "STATUS"], "{stopping:?}");
    assert_eq!(stopping[1], "EXTEND_TIMEOUT_USEC=20000000", "the drain and the farewell");
    assert!(service.ended().success());
    while let Some(told) = parent.told_within(Duration::from_millis(1)) {
        assert_eq!(told, ["WATCHDOG=1"], "nothing but life comes after STOPPING");
    }
    drop(greeted);
}

#[test]
fn a_start_that_fails_says_why() {
    let parent = Parent::new("[gateway]\nno_such_key = 1\n");
    let mut service = parent.start();
    let told = parent.told();
    assert_eq!(told[0], "ERRNO=22", "{told:?}");
    assert!(told[1].starts_with("STATUS=") && told[1].contains("no_such_key"), "{told:?}");
    assert_eq!(service.ended().code(), Some(64));

    let parent = Parent::new("[store]\npath = \"taken/by/nothing\"\n");
    let mut service = parent.start();
    let told = parent.told();
    assert_eq!(names(&told), ["ERRNO", "STATUS"], "{told:?}");
    assert_eq!(service.ended().code(), Some(1));
}

#[test]
fn a_process_that_stands_still_is_not_alive() {
    let parent = Parent::new("").env("WATCHDOG_USEC", "300000");
    let service = parent.start();
    parent.hears("WATCHDOG=1");
    service.signal("STOP");
    while parent.told_within(Duration::from_millis(900)).is_some() {}
    service.signal("CONT");
    parent.hears("WATCHDOG=1");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let parent = Parent::new("[gateway]\ndrain_timeout_ms = 600000\n");
    let mut service = parent.start();
    parent.hears("READY=1");
    let mut client = Client::connect(parent.address());
    let id = client.prompt("ada", "/slow 600");
    while client.reply(&id)["event"] != "text" {}
    service.signal("TERM");
    parent.hears("STOPPING=1");
    service.signal("TERM");
    assert!(service.ended().success());
}

#[test]
fn a_start_on_demand_under_systemds_own_tool() {
    needs!("systemd");
    let home = daemon::home();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let serve = daemon::command(home.path());
    let log = std::fs::File::create(home.path().join("activate.log")).unwrap();
    let mut activate = std::process::Command::new("systemd-socket-activate");
    activate
        .arg(format!("--listen={port}"))
        .arg(format!("--listen={}", home.path().join("s").display()))
        .args(["-E", &format!("HOME={}", home.path().display())])
        .arg(serve.get_program())
        .args(serve.get_args())
        .arg("serve")
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let _activate = Running::start(&mut activate);
    // The first to connect brings it up, and is served by it.
    eventually("the tool to listen", || std::net::TcpStream::connect(port).ok());
    let mut client = Client::connect(port);
    assert!(client.chat("ada", "hello").text().contains("hello"));
    assert!(std::fs::read_link(home.path().join(".xeno/gateway.sock")).unwrap().ends_with("s"));
}
