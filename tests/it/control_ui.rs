//! The Control UI over sockets: files of a folder and nothing else, with the headers that keep the
//! page to its own daemon.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::TIMEOUT;
use crate::support::daemon::{Daemon, command, home};

const PAGE: &str = "<!doctype html><html><head><script>boot()</script>\
                    <script type=\"module\" src=\"./assets/index-AbCd_-12.js\"></script></head>\
                    <body><openclaw-app></openclaw-app></body></html>";

/// An answer: status, headers in lower case, body.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            (key == name).then_some(value)
        })
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Asks with a target exactly as it is written here.
fn ask(address: SocketAddr, method: &str, target: &[u8], more: &str) -> Answer {
    let mut socket = TcpStream::connect(address).expect("it accepts");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
    let head = format!(" HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{more}\r\n");
    let request = [method.as_bytes(), b" ", target, head.as_bytes()].concat();
    socket.write_all(&request).expect("it is sent");
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).expect("it answers");
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let (status, head) = text.split_once("\r\n").expect("a status line");
    let head: String = head
        .lines()
        .map(|line| match line.split_once(": ") {
            Some((name, value)) => format!("{}: {value}\n", name.to_ascii_lowercase()),
            None => String::new(),
        })
        .collect();
    let status = status.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    Answer { status, head, body: bytes[end + 4..].to_vec() }
}

fn get(daemon: &Daemon, path: &str) -> Answer {
    ask(daemon.address, "GET", path.as_bytes(), "")
}

/// A home with a Control UI in `ui`, next to what must stay unseen.
fn installed() -> tempfile::TempDir {
    let home = home();
    let ui = home.path().join("ui");
    fs::create_dir_all(ui.join("assets")).expect("folders");
    let write = |path: &str, text: &[u8]| fs::write(home.path().join(path), text).expect("a file");
    write("ui/index.html", PAGE.as_bytes());
    write("ui/favicon.svg", b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>");
    write("ui/assets/index-AbCd_-12.js", b"app()");
    write("ui/assets/large-AbCd_-12.js", &vec![b'x'; 3_000_000]);
    write("ui/.env.js", b"hidden");
    write("secret.txt", b"TOP SECRET");
    symlink(home.path().join("secret.txt"), ui.join("link.txt")).expect("a link");
    symlink(home.path(), ui.join("up")).expect("a link");
    home
}

fn serving(home: tempfile::TempDir) -> Daemon {
    Daemon::at(home, "[openclaw]\ncontrol_ui = \"ui\"\n", &[])
}

#[test]
fn the_page_is_served_for_every_path_of_its_router() {
    let daemon = serving(installed());
    for path in ["/", "/chat", "/chat?token=x", "/settings/models", "/chat/", "/index.html"] {
        let answer = get(&daemon, path);
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, Some("text/html; charset=utf-8")),
            "{path}"
        );
        assert!(answer.text().contains("src=\"/assets/index-AbCd_-12.js\""), "{path}: {}", answer.text());
        assert_eq!(answer.header("cache-control"), Some("no-cache"));
    }
    let policy = get(&daemon, "/").header("content-security-policy").expect("a policy").to_owned();
    for part in [
        "default-src 'none'",
        "script-src 'self' 'sha256-",
        &format!("connect-src 'self' ws://{0} wss://{0} data:;", daemon.address),
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ] {
        assert!(policy.contains(part), "{part}: {policy}");
    }
    assert!(!policy.contains("unsafe-eval") && !policy.contains("http"), "{policy}");
    let unchanged = fs::read_to_string(daemon.home().join("ui/index.html")).expect("the page");
    assert_eq!(unchanged, PAGE, "the folder is as it was");
}

#[test]
fn files_have_their_types_and_can_be_kept() {
    let daemon = serving(installed());
    let script = get(&daemon, "/assets/index-AbCd_-12.js");
    assert_eq!((script.status, script.text().as_str()), (200, "app()"));
    assert_eq!(script.header("content-type"), Some("text/javascript; charset=utf-8"));
    assert_eq!(script.header("cache-control"), Some("public, max-age=31536000, immutable"));
    let large = get(&daemon, "/assets/large-AbCd_-12.js");
    assert_eq!((large.body.len(), large.header("content-length")), (3_000_000, Some("3000000")));

    let icon = get(&daemon, "/favicon.svg?v=1");
    assert_eq!(icon.header("content-type"), Some("image/svg+xml"));
    assert_eq!(icon.header("cache-control"), Some("no-cache"));
    let tag = icon.header("etag").expect("a tag").to_owned();
    let again = ask(daemon.address, "GET", b"/favicon.svg", &format!("If-None-Match: W/{tag}\r\n"));
    assert_eq!((again.status, again.body.len()), (304, 0));
    fs::write(daemon.home().join("ui/favicon.svg"), "<svg xmlns=\"http://www.w3.org/2000/SVG\"/>")
        .expect("a file");
    let changed = ask(daemon.address, "GET", b"/favicon.svg", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!(changed.status, 200, "as long as before, and another file");

    for path in ["/", "/favicon.svg", "/assets/index-AbCd_-12.js", "/control-ui-config.json", "/absent.js"] {
        let (whole, head) = (get(&daemon, path), ask(daemon.address, "HEAD", path.as_bytes(), ""));
        assert_eq!(head.status, whole.status, "{path}");
        assert!(head.body.is_empty(), "{path}");
        for name in ["content-type", "content-length", "etag", "content-security-policy"] {
            assert_eq!(head.header(name), whole.header(name), "{path}: {name}");
        }
        for (name, value) in [
            ("x-frame-options", "DENY"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
        ] {
            assert_eq!(whole.header(name), Some(value), "{path}: {name}");
        }
    }
    let posted = ask(daemon.address, "POST", b"/chat", "Content-Length: 0\r\n");
    assert_eq!((posted.status, posted.header("allow")), (405, Some("GET, HEAD")));
}

#[test]
fn nothing_outside_the_folder_is_reached() {
    let daemon = serving(installed());
    let targets: &[&[u8]] = &[
        b"/../secret.txt",
        b"/assets/../../secret.txt",
        b"/./../secret.txt",
        b"/%2e%2e/secret.txt",
        b"/%2E%2E/secret.txt",
        b"/.%2e/secret.txt",
        b"/..%2fsecret.txt",
        b"/..%2Fsecret.txt",
        b"/assets%2f..%2f..%2fsecret.txt",
        b"/..%5csecret.txt",
        b"/..\\secret.txt",
        b"/%252e%252e%252fsecret.txt",
        b"/..%c0%afsecret.txt",
        b"/%c0%ae%c0%ae/secret.txt",
        b"/..;/secret.txt",
        b"/secret.txt%00.js",
        b"/../secret.txt%00",
        b"/link.txt",
        b"/up/secret.txt",
        b"/up/up/secret.txt",
        b"//secret.txt",
        b"///etc/passwd.txt",
        b"/.env.js",
        b"/%2eenv.js",
        b"/assets/.env.js",
        b"/file:///etc/hostname.txt",
        b"http://127.0.0.1/../secret.txt",
        b"/ui/../secret.txt",
        b"/assets",
        b"/up",
        b"/\xff.js",
        b"/%ff.js",
        b"/%",
        b"/%0d%0aX-Injected:1.js",
    ];
    for target in targets {
        for method in ["GET", "HEAD"] {
            let answer = ask(daemon.address, method, target, "");
            let target = String::from_utf8_lossy(target);
            assert!(!answer.text().contains("SECRET"), "{target}: {}", answer.text());
            assert!(!answer.text().contains("hidden"), "{target}: {}", answer.text());
            assert!(!answer.head.contains("x-injected"), "{target}: {}", answer.head);
            let is_page = answer.text().contains("<openclaw-app>");
            assert!(
                answer.status == 404 || answer.status == 400 || is_page || method == "HEAD",
                "{target}: {} {}",
                answer.status,
                answer.text()
            );
        }
    }
    assert_eq!(get(&daemon, "/favicon.svg").status, 200, "and it goes on");
}

#[test]
fn the_daemons_own_paths_win_over_files() {
    let home = installed();
    for name in ["healthz", "readyz", "ws", "v2", "metrics", "control-ui-config.json"] {
        fs::write(home.path().join("ui").join(name), "a file").expect("a file");
    }
    let daemon = serving(home);
    for (path, status, text) in [
        ("/healthz", 200, "{\"ok\":true,\"status\":\"running\"}"),
        ("/health", 200, "ok"),
        ("/readyz", 200, "{\"ready\":true}"),
        ("/ws", 426, "websocket"),
        ("/v2", 426, "websocket"),
        ("/metrics", 200, "clawmux_sessions_awake "),
        ("/control-ui-config.json", 200, "\"basePath\":\"\""),
        ("/__openclaw/control-ui-config.json", 200, "\"assistantAgentId\":\"main\""),
        ("/avatar/main?meta=1", 200, "{\"avatarUrl\":null}"),
        ("/avatar/main", 404, "no such page"),
        ("/api/users/me/avatar", 404, "no such page"),
        ("/__openclaw__/workspace-icon/main", 404, "no such page"),
        ("/absent.css", 404, "no such page"),
    ] {
        let answer = get(&daemon, path);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(answer.text().contains(text), "{path}: {}", answer.text());
    }
}

#[test]
fn without_a_control_ui_there_is_a_short_text_and_a_wrong_one_is_refused() {
    let daemon = Daemon::start();
    let (root, chat) = (get(&daemon, "/"), get(&daemon, "/chat"));
    assert!(root.status == 200 && root.text().starts_with("clawmux "), "{}", root.text());
    assert_eq!(chat.status, 404);

    let home = home();
    refuses(home.path(), "[openclaw]\ncontrol_ui = \"nowhere\"\n", ":2: openclaw.control_ui");
    fs::create_dir(home.path().join("nowhere")).expect("a folder");
    refuses(home.path(), "[openclaw]\n\ncontrol_ui = \"nowhere\"\n", ":3: openclaw.control_ui");
}

fn refuses(home: &Path, config: &str, says: &str) {
    fs::write(home.join("gateway.toml"), config).expect("a configuration");
    let checked = command(home).arg("check").output().expect("it runs");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(64), "{said}");
    assert!(said.contains(says) && said.contains("no index.html"), "{said}");
}

#[test]
fn files_that_are_taken_slowly_hold_nobody_up_and_come_whole() {
    let daemon = serving(installed());
    let mut sockets = Vec::new();
    for _ in 0..20 {
        let mut socket = crate::support::raw::connect_with_small_buffer(daemon.address);
        socket
            .write_all(
                format!("GET /assets/large-AbCd_-12.js HTTP/1.1\r\nHost: {}\r\n\r\n", daemon.address)
                    .as_bytes(),
            )
            .expect("it is sent");
        let mut some = [0; 512];
        socket.read_exact(&mut some).expect("it begins");
        sockets.push(socket);
    }
    assert_eq!(get(&daemon, "/assets/large-AbCd_-12.js").body.len(), 3_000_000, "others are served");
    let mut rest = Vec::new();
    let socket = sockets.first_mut().expect("one");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a deadline");
    while rest.len() < 2_999_000 {
        let mut piece = [0; 65536];
        let read = socket.read(&mut piece).expect("it goes on when it is read");
        assert!(read > 0, "it ended after {}", rest.len());
        rest.extend_from_slice(&piece[..read]);
    }
}
