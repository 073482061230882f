//! The terminal client over the end of its daemon.

#![expect(clippy::unwrap_used, reason = "a test says why it failed by failing")]
#![allow(clippy::print_stderr, unreachable_pub, reason = "the support prints a failed daemon's log")]

mod support;

use std::io::{Read, copy};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use support::daemon::{Daemon, command, home};
use support::eventually;

/// An address that stays while the daemon behind it changes.
fn address_of(current: Arc<Mutex<Option<SocketAddr>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Some(daemon) = *current.lock().unwrap() else { continue };
            let Ok(daemon) = TcpStream::connect(daemon) else { continue };
            for (mut from, mut to) in [
                (client.try_clone().unwrap(), daemon.try_clone().unwrap()),
                (daemon.try_clone().unwrap(), client.try_clone().unwrap()),
            ] {
                std::thread::spawn(move || {
                    let _ = copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                    let _ = from.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

/// `clawmux chat` with this message; its output grows as it comes.
fn chat(address: SocketAddr, message: &str) -> (std::process::Child, Arc<Mutex<String>>) {
    let home = home();
    let mut command: Command = command(home.path());
    command.args(["chat", message, "--url", &format!("ws://{address}/ws")]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let said = Arc::new(Mutex::new(String::new()));
    let (mut stdout, shared) = (child.stdout.take().unwrap(), said.clone());
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        while let Ok(bytes @ 1..) = stdout.read(&mut buffer) {
            shared.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..bytes]));
        }
    });
    (child, said)
}

#[test]
fn an_answer_goes_on_when_the_daemon_is_killed_and_comes_back() {
    let daemon = Daemon::start();
    let current = Arc::new(Mutex::new(Some(daemon.address)));
    let address = address_of(current.clone());
    let (mut child, said) = chat(address, "/slow 5");
    eventually("some of the answer", || said.lock().unwrap().contains(" 2").then_some(()));
    *current.lock().unwrap() = None;
    let daemon = daemon.kill_and_restart();
    *current.lock().unwrap() = Some(daemon.address);
    let status = eventually("the end", || child.try_wait().unwrap());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(status.success(), "{status}: {stderr}");
    assert!(stderr.contains("waiting for the daemon"), "{stderr}");
    assert!(stderr.contains("was restarted and goes on"), "{stderr}");

    // The same without any trouble.
    let (mut child, whole) = chat(address, "/slow 5");
    let status = eventually("the end", || child.try_wait().unwrap());
    assert!(status.success());
    let whole = || whole.lock().unwrap().clone();
    eventually("all of it", || whole().ends_with('\n').then_some(()));
    assert_eq!(*said.lock().unwrap(), whole(), "said once, and all of it");
}
