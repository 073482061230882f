//! The Control UI: the files of an installed OpenClaw or Clawdbot package, served at `/` so that the
//! page and its WebSocket share an origin.
//!
//! Nothing in the folder is changed. What the two generations of the page need besides their files
//! is made here: the page itself for the paths its own router knows, a small description of the
//! daemon, and for the older one three variables set by a script. The Content-Security-Policy
//! allows the inline scripts of the page by their hashes, and nothing of another origin but the
//! fonts and the logo that the older page names.
//!
//! A path leads to a file only if each of its parts is a plain name and nothing on the way is a
//! symbolic link; files are read in pieces as the peer takes them. Deliberately absent: ranges,
//! compression, directory listings, pictures of agents.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use actix_web::body::{BoxBody, SizedStream};
use actix_web::http::{Method, StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, web};
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use clawmux_core::hex::hex;
use clawmux_core::ids::AgentId;
use clawmux_core::swappable::Swappable;
use futures::stream;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::connection::link::Link;

/// How much of a file is in memory for one peer.
const PIECE_BYTES: usize = 64 * 1024;

/// The largest page.
const PAGE_BYTES_MAX: u64 = 1 << 20;

/// How the page calls whoever answers, and the letter it shows for it.
const ASSISTANT_NAME: &str = "Assistant";
const ASSISTANT_AVATAR: &str = "A";

/// What the page asks for below these paths is not there; an answer other than 404 would be taken
/// for it.
const ABSENT: &[&str] = &["/api/", "/__openclaw__/", "/__openclaw/", "/avatar/"];

/// What a file of no page may do when it is opened by itself: nothing.
const FILE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox";

/// An installed Control UI.
#[derive(Debug)]
pub struct ControlUi {
    folder: PathBuf,
    agent: Swappable<Option<AgentId>>,
    version: Arc<str>,
}

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    /// The page.
    Page,
    /// A file, from the folder.
    File(PathBuf),
    /// The description of the daemon.
    Description,
    /// There are no pictures of agents.
    NoPicture,
    /// Nothing.
    Nothing,
}

impl ControlUi {
    /// That of a folder; `agent` answers who names none.
    pub fn new(folder: PathBuf, agent: Option<AgentId>, version: Arc<str>) -> Self {
        Self { folder, agent: Swappable::new(agent), version }
    }

    /// From now on this one answers who names none.
    pub(crate) fn set_agent(&self, agent: Option<AgentId>) {
        self.agent.set(agent);
    }

    /// Answers a request for a path that is none of the daemon's own.
    pub(crate) async fn serve(&self, request: &HttpRequest) -> HttpResponse {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return respond(StatusCode::METHOD_NOT_ALLOWED, FILE_POLICY)
                .insert_header((header::ALLOW, "GET, HEAD"))
                .finish();
        }
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        match find(request.path(), request.query_string()) {
            Found::Page => self.page(request, host).await,
            Found::File(path) => self.file(request, path, host).await,
            Found::Description => respond(StatusCode::OK, FILE_POLICY)
                .insert_header((header::CACHE_CONTROL, "no-store"))
                .json(json!({
                    "basePath": "",
                    "assistantName": ASSISTANT_NAME,
                    "assistantAvatar": ASSISTANT_AVATAR,
                    "assistantAgentId": self.agent.get().as_ref().as_ref().map(AgentId::as_str),
                    "serverVersion": &*self.version,
                })),
            Found::NoPicture => respond(StatusCode::OK, FILE_POLICY)
                .insert_header((header::CACHE_CONTROL, "no-store"))
                .json(json!({ "avatarUrl": null })),
            Found::Nothing => nothing(),
        }
    }

    async fn page(&self, request: &HttpRequest, host: Option<&str>) -> HttpResponse {
        let folder = self.folder.clone();
        let read = web::block(move || {
            let (file, facts) = open(&folder, Path::new("index.html"))?;
            if facts.len() > PAGE_BYTES_MAX {
                return Err(io::Error::other(format!("index.html is larger than {PAGE_BYTES_MAX} bytes")));
            }
            let mut text = String::new();
            file.take(PAGE_BYTES_MAX).read_to_string(&mut text)?;
            Ok(text)
        });
        let text = match read.await {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => return self.unreadable(&error),
            Err(_) => return nothing(),
        };
        let page = Page::new(&text);
        let tag = format!("\"{}\"", hex(&Sha256::digest(page.html.as_bytes())[..16]));
        let policy = page.policy(host);
        if is_known(request, &tag) {
            return unchanged(&policy, &tag, "no-cache");
        }
        respond(StatusCode::OK, &policy)
            .insert_header((header::CONTENT_TYPE, "text/html; charset=utf-8"))
            .insert_header((header::CACHE_CONTROL, "no-cache"))
            .insert_header((header::ETAG, tag))
            .body(page.html)
    }

    async fn file(&self, request: &HttpRequest, path: PathBuf, host: Option<&str>) -> HttpResponse {
        let (folder, wanted) = (self.folder.clone(), path.clone());
        let (file, facts) = match web::block(move || open(&folder, &wanted)).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                return self.unreadable(&error);
            }
            _ => return nothing(),
        };
        let kind = content_type(&path);
        // A worker runs under the policy of its own script.
        let policy =
            if kind.starts_with("text/javascript") { policy(&[], host, false) } else { FILE_POLICY.into() };
        let caching = if is_hashed(&path) { "public, max-age=31536000, immutable" } else { "no-cache" };
        let tag = tag(&facts);
        if is_known(request, &tag) {
            return unchanged(&policy, &tag, caching);
        }
        respond(StatusCode::OK, &policy)
            .insert_header((header::CONTENT_TYPE, kind))
            .insert_header((header::CACHE_CONTROL, caching))
            .insert_header((header::ETAG, tag))
            .body(pieces(file, facts.len(), request.conn_data::<Arc<Link>>().cloned()))
    }

    fn unreadable(&self, error: &io::Error) -> HttpResponse {
        tracing::warn!(folder = %self.folder.display(), %error, "the control UI can't be read");
        respond(StatusCode::SERVICE_UNAVAILABLE, FILE_POLICY)
            .json(json!({ "error": "the Control UI can't be read: see the log" }))
    }
}

/// What `path`, as it came, leads to.
fn find(path: &str, query: &str) -> Found {
    if path == "/control-ui-config.json"
        || path.ends_with("/control-ui-config.json") && path.starts_with("/__openclaw")
    {
        return Found::Description;
    }
    if let Some(agent) = path.strip_prefix("/avatar/") {
        let asks = query.split('&').any(|pair| pair == "meta=1");
        return if asks && !agent.is_empty() && !agent.contains('/') {
            Found::NoPicture
        } else {
            Found::Nothing
        };
    }
    if ABSENT.iter().any(|absent| path.starts_with(absent)) {
        return Found::Nothing;
    }
    let Some(names) = names(path) else { return Found::Nothing };
    match names.last() {
        // The last name of a path of the page's own router has no extension.
        Some(last) if last.contains('.') && last != "index.html" => Found::File(names.iter().collect()),
        Some(last) if last == "index.html" && names.len() > 1 => Found::Nothing,
        _ => Found::Page,
    }
}

/// The names a path consists of, decoded; none where one of them is not a plain name.
fn names(path: &str) -> Option<Vec<String>> {
    let rest = path.strip_prefix('/')?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.is_empty() {
        return Some(Vec::new());
    }
    rest.split('/').map(|part| decode(part).filter(|name| is_plain(name))).collect()
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.chars().any(|c| c.is_control() || "/\\:".contains(c))
}

/// Decodes `%41`; none where that is wrong or gives no UTF-8.
fn decode(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

/// Opens a file below the folder, if it is one and no symbolic link leads to it. The folder itself
/// may be one: that is the operator's word.
fn open(folder: &Path, path: &Path) -> io::Result<(File, Metadata)> {
    let no_file = || io::Error::from(io::ErrorKind::NotFound);
    let folder = folder.canonicalize()?;
    let wanted = folder.join(path);
    if wanted.canonicalize()? != wanted {
        return Err(no_file());
    }
    // A pipe must not hold the thread up, and what has become a link meanwhile is not followed.
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&wanted)?;
    let facts = file.metadata()?;
    if facts.is_file() { Ok((file, facts)) } else { Err(no_file()) }
}

/// A body that reads the file as the peer takes it.
fn pieces(file: File, bytes: u64, link: Option<Arc<Link>>) -> BoxBody {
    let pieces = stream::try_unfold((file, bytes), move |(mut file, rest)| {
        let link = link.clone();
        async move {
            if rest == 0 {
                return Ok(None);
            }
            if let Some(link) = &link {
                // The request goes on as long as its answer is taken.
                link.requested();
            }
            let read = web::block(move || {
                let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(rest).unwrap_or(PIECE_BYTES))];
                file.read_exact(&mut piece)?;
                Ok::<_, io::Error>((Bytes::from(piece), file))
            });
            let (piece, file) = read.await.map_err(io::Error::other)??;
            let rest = rest - piece.len() as u64;
            Ok::<_, io::Error>(Some((piece, (file, rest))))
        }
    });
    BoxBody::new(SizedStream::new(bytes, Box::pin(pieces)))
}

/// The page, as it is served.
struct Page {
    html: String,
    /// Hashes of its inline scripts, as a policy names them.
    scripts: Vec<String>,
    /// Whether it is of the generation that has its variables set, and its fonts and logo from
    /// elsewhere.
    is_older: bool,
}

impl Page {
    fn new(text: &str) -> Self {
        // Parsers of HTML see no other line end, and a page below `/` must find its files.
        let mut html =
            text.replace("\r\n", "\n").replace("src=\"./", "src=\"/").replace("href=\"./", "href=\"/");
        let is_older = html.contains("<clawdbot-app");
        if is_older && let Some(at) = html.find("</head>") {
            let script = format!(
                "<script>window.__CLAWDBOT_CONTROL_UI_BASE_PATH__=\"\";\
                 window.__CLAWDBOT_ASSISTANT_NAME__=\"{ASSISTANT_NAME}\";\
                 window.__CLAWDBOT_ASSISTANT_AVATAR__=\"{ASSISTANT_AVATAR}\";</script>"
            );
            html.insert_str(at, &script);
        }
        let scripts = inline_scripts(&html)
            .map(|script| format!("'sha256-{}'", BASE64.encode(Sha256::digest(script))))
            .collect();
        Self { html, scripts, is_older }
    }

    fn policy(&self, host: Option<&str>) -> String {
        policy(&self.scripts, host, self.is_older)
    }
}

/// The texts between `<script>` and `</script>`.
fn inline_scripts(html: &str) -> impl Iterator<Item = &str> {
    html.split("<script").skip(1).filter_map(|rest| {
        let (tag, rest) = rest.split_once('>')?;
        let (text, _) = rest.split_once("</script")?;
        (!tag.contains(" src=") && !text.is_empty()).then_some(text)
    })
}

/// What a page may load and speak to: this daemon. Icons are fetched from data that the page holds. Styles are set by scripts everywhere; pictures
/// may be data that the page holds, but not of elsewhere: one that an answer names would tell who
/// reads it.
fn policy(scripts: &[String], host: Option<&str>, is_older: bool) -> String {
    let mut own = String::from("'self'");
    // Not every browser takes 'self' for WebSockets. What is not a plain name and port is left out.
    let plain = |host: &&str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:".contains(&byte));
    if let Some(host) = host.filter(|host| !host.is_empty()).filter(plain) {
        own.push_str(&format!(" ws://{host} wss://{host}"));
    }
    let scripts: String = scripts.iter().map(|hash| format!(" {hash}")).collect();
    let (styles, fonts, pictures) = match is_older {
        true => (" https://fonts.googleapis.com", " https://fonts.gstatic.com", " https://mintcdn.com"),
        false => ("", "", ""),
    };
    format!(
        "default-src 'none'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'{styles}; \
         font-src 'self'{fonts}; img-src 'self' data: blob:{pictures}; media-src 'self' data: blob:; \
         connect-src {own} data:; worker-src 'self'; manifest-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

fn respond(status: StatusCode, policy: &str) -> HttpResponseBuilder {
    let mut response = HttpResponse::build(status);
    response
        .insert_header((header::CONTENT_SECURITY_POLICY, policy))
        .insert_header((header::X_FRAME_OPTIONS, "DENY"))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        .insert_header(("cross-origin-opener-policy", "same-origin"))
        .insert_header(("cross-origin-resource-policy", "same-origin"))
        .insert_header(("permissions-policy", "camera=(), geolocation=(), microphone=(self)"));
    response
}

fn nothing() -> HttpResponse {
    respond(StatusCode::NOT_FOUND, FILE_POLICY)
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .json(json!({ "error": "no such page" }))
}

fn unchanged(policy: &str, tag: &str, caching: &str) -> HttpResponse {
    respond(StatusCode::NOT_MODIFIED, policy)
        .insert_header((header::ETAG, tag))
        .insert_header((header::CACHE_CONTROL, caching))
        .finish()
}

/// Whether the peer has what this tag stands for.
fn is_known(request: &HttpRequest, tag: &str) -> bool {
    let known = request.headers().get_all(header::IF_NONE_MATCH).filter_map(|value| value.to_str().ok());
    known.flat_map(|value| value.split(',')).any(|known| {
        let known = known.trim();
        known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag
    })
}

/// Differs where the file does: packages give all their files one time of change, so when and where
/// the file came to be here counts as well.
fn tag(facts: &Metadata) -> String {
    format!("\"{:x}-{:x}-{:x}.{:x}\"", facts.len(), facts.ino(), facts.ctime(), facts.ctime_nsec())
}

/// Whether the name holds a hash of the content, so that another content has another name.
fn is_hashed(path: &Path) -> bool {
    const HASH_CHARS: usize = 8;
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let hash = name.len().checked_sub(HASH_CHARS + 1).and_then(|at| name.get(at..));
    path.starts_with("assets") && hash.is_some_and(|hash| hash.starts_with('-'))
}

fn content_type(path: &Path) -> &'static str {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json; charset=utf-8",
        "webmanifest" => "application/manifest+json; charset=utf-8",
        "txt" | "md" => "text/plain; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "woff" => "font/woff",
        "ttf" => "font/ttf",
        "wasm" => "application/wasm",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(path: &str) -> Found {
        Found::File(path.into())
    }

    #[test]
    fn paths_lead_to_the_page_or_to_a_plain_name() {
        for (path, found) in [
            ("/", Found::Page),
            ("/index.html", Found::Page),
            ("/chat", Found::Page),
            ("/chat/", Found::Page),
            ("/settings/models", Found::Page),
            ("/assets/index-DsEuFQRE.js", file("assets/index-DsEuFQRE.js")),
            ("/file%20name.svg", file("file name.svg")),
            ("/control-ui-config.json", Found::Description),
            ("/__openclaw/control-ui-config.json", Found::Description),
            ("/__openclaw__/control-ui-config.json", Found::Description),
            ("/api/users/1/avatar", Found::Nothing),
            ("/__openclaw__/workspace-icon/x", Found::Nothing),
            ("/avatar/main", Found::Nothing),
            ("/nested/index.html", Found::Nothing),
        ] {
            assert_eq!(find(path, ""), found, "{path}");
        }
        assert_eq!(find("/avatar/main", "meta=1"), Found::NoPicture);
        assert_eq!(find("/avatar/a/b", "meta=1"), Found::Nothing);
    }

    #[test]
    fn what_is_no_plain_name_leads_nowhere() {
        for path in [
            "/../gateway.toml",
            "/assets/../../gateway.toml",
            "/%2e%2e/gateway.toml",
            "/..%2fgateway.toml",
            "/assets/%2e%2e%2f%2e%2e%2fgateway.toml",
            "/..%5cgateway.toml",
            "/..\\gateway.toml",
            "/%252e%252e/%00",
            "/a%00.js",
            "/.env.js",
            "/assets/.hidden.js",
            "//etc/passwd.js",
            "/assets//x.js",
            "/C:/x.js",
            "/%zz.js",
            "/%2",
            "/%ff.js",
            "/a%0a.js",
            "x.js",
        ] {
            assert_eq!(find(path, ""), Found::Nothing, "{path}");
        }
    }

    #[test]
    fn scripts_within_a_page_are_allowed_by_their_hash_alone() {
        let page = Page::new(
            "<head><script data-x=\"y\">one()\r\n</script><script type=\"module\" src=\"./a.js\"></script></head>\
             <body><openclaw-app></openclaw-app><script>two()</script></body>",
        );
        let hash = |text: &str| format!("'sha256-{}'", BASE64.encode(Sha256::digest(text)));
        assert_eq!(page.scripts, [hash("one()\n"), hash("two()")]);
        assert!(page.html.contains("src=\"/a.js\""), "{}", page.html);
        let policy = page.policy(Some("127.0.0.1:18789"));
        assert!(
            policy.contains("connect-src 'self' ws://127.0.0.1:18789 wss://127.0.0.1:18789 data:;"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe-eval") && !policy.contains("googleapis"), "{policy}");
        assert!(!policy.contains("script-src 'self' 'unsafe-inline'"), "{policy}");
        let policy = page.policy(Some("evil; script-src *"));
        assert!(policy.contains("connect-src 'self' data:;"), "{policy}");
    }

    #[test]
    fn the_older_page_is_given_its_variables() {
        let page = Page::new("<html><head><title>x</title></head><clawdbot-app></clawdbot-app></html>");
        assert!(page.html.contains("__CLAWDBOT_CONTROL_UI_BASE_PATH__=\"\""), "{}", page.html);
        assert_eq!(page.scripts.len(), 1);
        assert!(page.policy(None).contains("style-src 'self' 'unsafe-inline' https://fonts.googleapis.com;"));
        let newer = Page::new("<html><head></head><openclaw-app></openclaw-app></html>");
        assert_eq!(newer.scripts, Vec::<String>::new());
    }

    #[test]
    fn hashed_names_are_known_from_others() {
        for name in ["index-DsEuFQRE.js", "control-ui-core-2cJmD3kZ.css", "x-FF_N-8aB.js"] {
            assert!(is_hashed(&Path::new("assets").join(name)), "{name}");
        }
        for name in
            ["assets/index.js", "favicon.svg", "fonts/lora-italic-latin.woff2", "assets/x-DsEuFQRE9.js"]
        {
            assert!(!is_hashed(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn a_link_or_anything_but_a_file_is_not_opened() {
        let home = tempfile::tempdir().unwrap();
        let (outside, folder) = (home.path().join("secret.txt"), home.path().join("ui"));
        std::fs::create_dir_all(folder.join("real")).unwrap();
        std::fs::write(&outside, "secret").unwrap();
        std::fs::write(folder.join("real/a.txt"), "a").unwrap();
        std::os::unix::fs::symlink(&outside, folder.join("link.txt")).unwrap();
        std::os::unix::fs::symlink(home.path(), folder.join("up")).unwrap();
        std::os::unix::fs::symlink(folder.join("real"), folder.join("within")).unwrap();
        assert!(open(&folder, Path::new("real/a.txt")).is_ok());
        for path in ["link.txt", "up/secret.txt", "within/a.txt", "real", "absent", "real/a.txt/b"] {
            assert!(open(&folder, Path::new(path)).is_err(), "{path}");
        }
        let by_link = home.path().join("installed");
        std::os::unix::fs::symlink(&folder, &by_link).unwrap();
        assert!(open(&by_link, Path::new("real/a.txt")).is_ok(), "the folder itself may be a link");
    }

    proptest! {
        /// Whatever is asked for, what is found is below the folder.
        #[test]
        fn no_path_leads_out(path in "(/|%2e|%2f|%5c|%00|\\.|a|é|%c3%a9|:|js|\\\\){0,12}") {
            if let Found::File(found) = find(&format!("/{path}"), "") {
                let plain = found.components().all(|part| matches!(part, std::path::Component::Normal(_)));
                prop_assert!(plain && found.is_relative(), "{path} {found:?}");
            }
        }
    }
}
