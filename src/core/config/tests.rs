//! The loader from outside: layers in, a configuration or complaints out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::auth::Scope;
use crate::auth::authority::digest;

const SAMPLE: &str = include_str!("../../../gateway.toml");

struct Given<'a> {
    files: Vec<(&'a str, &'a str)>,
    env: Vec<(&'a str, &'a str)>,
    listen: Vec<&'a str>,
}

impl Given<'_> {
    fn read(&self) -> Result<(Config, section::Report), Vec<Complaint>> {
        self.with(load::read)
    }

    fn with<T>(&self, load: impl FnOnce(Sources<'_>) -> T) -> T {
        let files: Vec<File<'_>> = self.files.iter().map(|(name, text)| File { name, text }).collect();
        let env: Vec<(String, String)> =
            self.env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let listen: Vec<String> = self.listen.iter().map(|text| (*text).into()).collect();
        let flag = Flag { name: "--listen", key: "gateway.listen", values: &listen };
        let flags = if listen.is_empty() { vec![] } else { vec![flag] };
        let mut read_secret = |path: &Path| match path.file_name().and_then(|name| name.to_str()) {
            Some("missing") => Err("no such file".to_owned()),
            Some("empty") => Ok("\n".to_owned()),
            Some(name) => Ok(format!("secret of {name}\n")),
            None => Err("not a file".to_owned()),
        };
        load(Sources {
            files: &files,
            env: &env,
            flags: &flags,
            home: Path::new("/home"),
            read_secret: &mut read_secret,
            is_file: &mut |path| path.starts_with("/home/ui"),
        })
    }

    fn config(&self) -> Config {
        self.loaded().config
    }

    fn loaded(&self) -> Loaded {
        self.with(load).unwrap_or_else(|complaints| panic!("{}", lines(&complaints).join("\n")))
    }

    fn complaints(&self) -> Vec<String> {
        match self.with(load) {
            Ok(_) => panic!("accepted: {:?} {:?}", self.files, self.env),
            Err(complaints) => lines(&complaints),
        }
    }
}

fn lines(complaints: &[Complaint]) -> Vec<String> {
    complaints.iter().map(Complaint::to_string).collect()
}

fn toml(text: &str) -> Given<'_> {
    Given { files: vec![("gateway.toml", text)], env: vec![], listen: vec![] }
}

fn env<'a>(env: &[(&'a str, &'a str)]) -> Given<'a> {
    Given { files: vec![], env: env.to_vec(), listen: vec![] }
}

/// The sample with its commented examples taken in.
fn sample_with_examples() -> String {
    let example = |line: &str| {
        let rest = line.strip_prefix("# ")?;
        let key = rest.split_once(" = ").map_or("", |(key, _)| key);
        let is_key =
            !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        (rest.starts_with('[') || is_key).then(|| rest.to_owned())
    };
    SAMPLE.lines().map(|line| example(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

#[test]
fn the_sample_is_the_defaults() {
    let loaded = Given { files: vec![("gateway.toml", SAMPLE)], env: vec![], listen: vec![] }
        .with(|sources| load(Sources { home: Path::new(""), ..sources }));
    let loaded = loaded.unwrap_or_else(|complaints| panic!("{}", lines(&complaints).join("\n")));
    assert_eq!(loaded.config, Config::default());
    assert_eq!(lines(&loaded.warnings), Vec::<String>::new());
}

#[test]
fn the_examples_of_the_sample_hold_and_no_key_is_missing() {
    let text = sample_with_examples();
    // `token_file` beside `token_env` stands for "instead of".
    let given = Given { env: vec![("CI_KEY", "key")], ..toml(&text) };
    let (_, report) = given.read().unwrap_or_else(|complaints| panic!("{}", lines(&complaints).join("\n")));
    assert_eq!(lines(&report.complaints), Vec::<String>::new());

    let mut written = BTreeSet::new();
    let mut section = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("[[").and_then(|rest| rest.split_once("]]")) {
            section = format!("{}[]", name.0);
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            section = match name.0.split_once('.') {
                Some((free @ ("agents" | "providers"), _)) => format!("{free}.*"),
                _ => name.0.to_owned(),
            };
        } else if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            written.insert(format!("{section}.{key}"));
        }
    }
    let mut missing: Vec<_> = report.known.difference(&written).collect();
    // Said in the comment of the key beside it.
    missing.retain(|key| !SAMPLE.contains("or key_file, or sha256") || *key != "auth.api_keys[].key_file");
    assert!(missing.is_empty(), "write these keys into gateway.toml: {missing:?}");
    let unknown: Vec<_> = written.difference(&report.known).collect();
    assert!(unknown.is_empty(), "gateway.toml writes keys that have no effect: {unknown:?}");
}

#[test]
fn nothing_at_all_runs_offline_on_loopback() {
    let config = env(&[]).config();
    assert_eq!(config.gateway.listen, ["127.0.0.1:18789".parse().unwrap()]);
    let main = &config.agents[&AgentId::from("main")];
    assert_eq!(main.models, [ModelRef { provider: "offline".into(), model: "offline".into() }]);
    assert_eq!(main.soul, Path::new("/home/SOUL.md"));
    assert_eq!(config.store.path, Path::new("/home/clawmux.db"));
    assert_eq!(config.default_agent, Some("main".into()));
    assert_eq!(config.auth.token, None);
}

#[test]
fn later_layers_win_key_by_key() {
    let given = Given {
        files: vec![
            (
                "/etc/clawmux/gateway.toml",
                "[limits]\nqueue = 1\n[budgets]\nsession = 1\ndaily = 1\nmonthly = 1",
            ),
            ("gateway.toml", "[budgets]\ndaily = 2\nmonthly = 2"),
        ],
        env: vec![("CLAWMUX__BUDGETS__MONTHLY", "3"), ("CLAWMUX__GATEWAY__LISTEN", "127.0.0.1:1")],
        listen: vec!["127.0.0.1:2", "[::1]:3"],
    };
    let config = given.config();
    assert_eq!(config.budgets, Budgets { session: 1, daily: 2, monthly: 3 });
    assert_eq!(config.limits.queue, 1);
    assert_eq!(config.gateway.listen, ["127.0.0.1:2".parse().unwrap(), "[::1]:3".parse().unwrap()]);
}

#[test]
fn the_environment_can_say_every_kind_of_value() {
    let config = env(&[
        ("CLAWMUX__AGENTS__MAIN__TOOLS", "echo, clock"),
        ("CLAWMUX__AGENTS__WORK__PROVIDER", "offline"),
        ("CLAWMUX__GATEWAY__ALLOWED_ORIGINS", "[\"https://A.example/\"]"),
        ("CLAWMUX__STORE__RECOVERY", "interrupt"),
        ("CLAWMUX__GATEWAY__DRAIN_TIMEOUT_MS", "1_500"),
        ("CLAWMUX__BINDINGS", "[{agent = \"work\", channel = \"x\"}]"),
        ("CLAWMUX_HOME", "not a key"),
    ])
    .config();
    assert_eq!(config.agents[&AgentId::from("main")].tools, ["echo".into(), "clock".into()]);
    assert_eq!(config.gateway.allowed_origins, ["https://a.example"]);
    assert_eq!(config.store.recovery, Recovery::Interrupt);
    assert_eq!(config.gateway.drain_timeout, Duration::from_millis(1500));
    assert_eq!(config.bindings[0].agent.as_str(), "work");
}

#[test]
fn every_complaint_comes_at_once_with_its_place() {
    let text = r#"[gateway]
listen = ["127.0.0.1:1", "here"]
handshake_timeout_ms = 0
heartbeet_interval_ms = 5

[auth]
token = "geheim-geheim"
loopback = "maybe"

[agents.Main]
[agents.main]
provider = "antropic"
max_tokens = "many"
fallback = ["gpt-4o"]

[default]
agent = "man"

[[bindings]]
agent = "nobody"

[[plugins]]
name = "notes"
capabilities = ["http:https://x", "host_function:clock"]
approval = "ask"
[[plugins]]
name = "echo"
[[plugins]]
name = "echo"

[budgets]
daily = -1
[sections]
x = 1
"#;
    let given = Given {
        env: vec![("CLAWMUX__LIMITS__QUEUE", "x"), ("CLAWMUX__LIMITS__QUEU", "1"), ("CLAWMUX__", "1")],
        ..toml(text)
    };
    // A variable that names no key is found before anything is read; the rest comes together.
    assert_eq!(given.complaints(), ["CLAWMUX__: expected CLAWMUX__SECTION__KEY"]);
    let given = Given { env: given.env[..2].to_vec(), ..given };
    let complaints = given.complaints();
    for (line, says) in [
        ("gateway.toml:2:", "expected ADDR:PORT"),
        ("gateway.toml:3:", "expected a whole number from 1 to 86400000, found 0"),
        ("gateway.toml:4:", "heartbeet_interval_ms: unknown key; did you mean heartbeat_interval_ms?"),
        (
            "gateway.toml:7:",
            "auth.token: unknown key; a secret is never written here: use token_env or token_file",
        ),
        ("gateway.toml:8:", "expected \"auto\" or \"required\" or \"skip\", found \"maybe\""),
        ("gateway.toml:10:", "expected a name of lowercase letters"),
        ("gateway.toml:12:", "there is no provider \"antropic\"; did you mean \"anthropic\"?"),
        ("gateway.toml:13:", "max_tokens: expected a whole number"),
        ("gateway.toml:14:", "expected PROVIDER/MODEL"),
        ("gateway.toml:17:", "there is no agent \"man\"; did you mean \"main\"?"),
        ("gateway.toml:20:", "there is no agent \"nobody\"; there are:"),
        ("gateway.toml:23:", "plugins.path: missing for \"notes\""),
        ("gateway.toml:24:", "http grants are not implemented yet; allowed is host_function:clock"),
        ("gateway.toml:25:", "\"ask\" is not there yet"),
        ("gateway.toml:29:", "two plugins named \"echo\""),
        ("gateway.toml:32:", "budgets.daily: expected a whole number of at least 0, found -1"),
        ("gateway.toml:33:", "sections: unknown key"),
        ("CLAWMUX__LIMITS__QUEUE:", "expected a whole number from 1 to 100000, found \"x\""),
        ("CLAWMUX__LIMITS__QUEU:", "did you mean queue?"),
    ] {
        assert!(
            complaints.iter().any(|c| c.starts_with(line) && c.contains(says)),
            "no complaint {line} {says} in\n{}",
            complaints.join("\n")
        );
    }
    assert_eq!(complaints.len(), 19, "{}", complaints.join("\n"));
    assert!(!complaints.join("").contains("geheim"), "a secret is not repeated");
}

#[test]
fn broken_toml_is_complained_of_with_its_line_in_every_file() {
    let given = Given {
        files: vec![("a.toml", "[gateway]\nlisten = [\n"), ("b.toml", "x = 1\n[log\n")],
        env: vec![],
        listen: vec![],
    };
    let complaints = given.complaints();
    assert_eq!(complaints.len(), 2, "{complaints:?}");
    assert!(complaints[0].starts_with("a.toml:") && complaints[1].starts_with("b.toml:2: not valid TOML"));
}

#[test]
fn a_section_that_is_none_and_a_key_that_is_a_section() {
    let complaints =
        toml("gateway = 3\nlog = { format = { x = 1 } }\nagents = { main = 1 }\nbindings = 1").complaints();
    assert!(complaints[0].contains("expected a section [gateway], found 3"), "{complaints:?}");
    assert!(complaints[1].contains("found a section"), "{complaints:?}");
    assert!(complaints[2].contains("agents.main: expected a section"), "{complaints:?}");
    assert!(complaints[3].contains("expected sections [[bindings]]"), "{complaints:?}");
}

#[test]
fn what_is_not_there_yet_is_warned_of_by_name() {
    let text = "[gateway]\nsocket_group = \"claw\"\n[scheduler]\nheartbeat_minutes = 30\nheartbeat_tokens = 20000\n\
                [xeno]\nhome = \"/x\"\n[limits]\nagents = 3\n[auth.jwt]\nissuer = \"me\"\n[files]\nattachment_roots = [\"/\"]\n\
                [approvals]\ntimeout_ms = 1\n[log]\nformat = \"journald\"";
    let warnings = lines(&toml(text).loaded().warnings);
    for name in [
        "gateway.socket_group",
        "scheduler.heartbeat_minutes",
        "xeno.home",
        "limits.agents",
        "auth.jwt.issuer",
        "files.attachment_roots",
        "approvals.timeout_ms",
        "log.format",
    ] {
        assert!(
            warnings.iter().any(|w| w.contains(name) && w.contains("not there yet")),
            "{name}: {warnings:?}"
        );
    }
    assert_eq!(warnings.len(), 8, "the default of heartbeat_tokens is not warned of: {warnings:?}");
    assert!(!toml("[scheduler]\nheartbeet = 1").complaints().is_empty());
    let warnings =
        lines(&env(&[("CLAWMUX__XENO__HOME", "/x"), ("CLAWMUX_JWT_SECRET", "s")]).loaded().warnings);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[test]
fn the_control_ui_is_a_folder_with_a_page() {
    let openclaw = toml("[openclaw]\ntick_interval_ms = 200\ncontrol_ui = \"ui\"").config().openclaw;
    assert_eq!(openclaw.control_ui.as_deref(), Some(Path::new("/home/ui")));
    assert_eq!(openclaw.tick_interval, Duration::from_millis(200));
    assert_eq!(openclaw.max_payload_bytes, 26_214_400, "its own, not the gateway's");
    let complaints = toml("[openclaw]\ntick_interval_ms = 1\ncontrol_ui = \"/elsewhere\"").complaints();
    assert!(complaints[0].starts_with("gateway.toml:2: openclaw.tick_interval_ms"), "{complaints:?}");
    assert!(complaints[1].starts_with("gateway.toml:3: openclaw.control_ui"), "{complaints:?}");
    assert!(complaints[1].contains("no index.html in /elsewhere"), "{complaints:?}");
}

#[test]
fn auto_is_the_first_whose_key_is_set() {
    let models = |text, env: &[_]| {
        let given = Given { env: env.to_vec(), ..toml(text) };
        let config = given.config();
        let model = config.agents[&AgentId::from("main")].models[0].clone();
        assert!(config.providers.contains_key(&model.provider), "{model:?} is filled in");
        (model.provider, model.model)
    };
    let is = |provider: &str, model: &str| (provider.to_owned(), model.to_owned());
    let (anthropic, openai) = (("ANTHROPIC_API_KEY", "a"), ("OPENAI_API_KEY", "o"));
    assert_eq!(models("", &[anthropic, openai]), is("anthropic", "claude-sonnet-4-5"));
    assert_eq!(models("", &[openai]), is("openai", "gpt-4o"));
    assert_eq!(models("", &[("ANTHROPIC_API_KEY", " ")]), is("offline", "offline"));
    assert_eq!(models("[agents.main]\nmodel = \"o3\"", &[openai]), is("openai", "o3"));
    // A configured one counts by its own key, or none where it is a server of one's own.
    let own = "[providers.openai]\nbase_url = \"http://127.0.0.1:1/v1/\"";
    assert_eq!(models(own, &[]), is("openai", "gpt-4o"));
    let keyed = "[providers.anthropic]\napi_key_env = \"MY_KEY\"";
    assert_eq!(models(keyed, &[("MY_KEY", "x"), openai]), is("anthropic", "claude-sonnet-4-5"));
    assert_eq!(models(keyed, &[anthropic]), is("offline", "offline"));
}

#[test]
fn providers_get_their_own_key_only() {
    let text = "[providers.openai]\nkind = \"openai\"\n[providers.lab]\nkind = \"openai\"\nbase_url = \"http://lab:1/v1/\"\n\
                [providers.filed]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1\"\napi_key_file = \"keys/filed\"\nca_file = \"ca.pem\"";
    let given = Given { env: vec![("OPENAI_API_KEY", "o")], ..toml(text) };
    let config = given.config();
    assert_eq!(config.providers["openai"].api_key, Some(Secret::new("o")));
    assert_eq!(config.providers["lab"].api_key, None, "the key of api.openai.com goes nowhere else");
    assert_eq!(config.providers["lab"].base_url, "http://lab:1/v1");
    assert_eq!(config.providers["filed"].api_key, Some(Secret::new("secret of filed")));
    assert_eq!(config.providers["filed"].ca_file, Some(PathBuf::from("/home/ca.pem")));
    for bad in ["ftp://x", "https://", "http://user:pw@host", "http://x?key=1", "x", "http://a b"] {
        let text = format!("[providers.lab]\nkind = \"openai\"\nbase_url = {bad:?}");
        let complaints = toml(&text).complaints();
        assert!(complaints[0].contains("providers.lab.base_url: expected http://"), "{complaints:?}");
        assert!(!complaints[0].contains("pw"), "{complaints:?}");
    }
    assert!(
        toml("[providers.lab]\nbase_url = \"http://x\"").complaints()[0]
            .contains("providers.lab.kind: missing")
    );
}

#[test]
fn fallbacks_follow_the_model() {
    let text = "[agents.main]\nprovider = \"offline\"\nfallback = [\"openai/gpt-4o\", \"anthropic/a/b\"]";
    let config = toml(text).config();
    let models: Vec<String> = config.agents[&AgentId::from("main")]
        .models
        .iter()
        .map(|model| format!("{}/{}", model.provider, model.model))
        .collect();
    assert_eq!(models, ["offline/offline", "openai/gpt-4o", "anthropic/a/b"]);
}

#[test]
fn credentials_come_from_where_the_configuration_says() {
    let hex = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let text = format!(
        "[auth]\ntoken_file = \"token\"\n[[auth.api_keys]]\nname = \"a\"\nsha256 = \"{hex}\"\nrole = \"user\"\n\
         [[auth.api_keys]]\nname = \"b\"\nkey_env = \"B\"\nscopes = [\"daemon.read\", \"operator.approvals\"]\n\
         [[auth.api_keys]]\nname = \"c\"\nkey_file = \"/c\"\nrole = \"admin\""
    );
    let given = Given { env: vec![("B", "bee"), ("CLAWMUX_TOKEN", "other")], ..toml(&text) };
    let auth = given.config().auth;
    assert_eq!(auth.token, Some(Secret::new("secret of token")));
    assert_eq!(auth.api_keys[0].sha256, digest("test"));
    assert_eq!(auth.api_keys[0].scopes, Scopes::USER);
    assert_eq!(auth.api_keys[1].sha256, digest("bee"));
    assert_eq!(auth.api_keys[1].scopes, Scopes::of(&[Scope::Read, Scope::Approve]));
    assert_eq!((auth.api_keys[2].sha256, auth.api_keys[2].scopes), (digest("secret of c"), Scopes::ADMIN));
    assert_eq!(
        env(&[("CLAWMUX_TOKEN", "0123456789abcdef\n")]).config().auth.token.unwrap().expose().len(),
        16
    );
}

#[test]
fn a_credential_that_is_not_there_is_never_no_credential() {
    for (text, says) in [
        ("[auth]\ntoken_env = \"MY_TOKEN\"", "is not set"),
        ("[auth]\ntoken_env = \"sk-very-secret\"", "expected the name of an environment variable"),
        ("[auth]\ntoken_file = \"missing\"", "/home/missing can't be read: no such file"),
        ("[auth]\ntoken_file = \"empty\"", "is empty"),
        ("[[auth.api_keys]]\nname = \"a\"\nrole = \"user\"", "has no key"),
        ("[[auth.api_keys]]\nname = \"a\"\nrole = \"user\"\nsha256 = \"12\"", "64 hexadecimal digits"),
        ("[[auth.api_keys]]\nname = \"a\"\nkey_file = \"k\"", "has no role"),
        ("[[auth.api_keys]]\nname = \"a\"\nkey_file = \"k\"\nrole = \"root\"", "found \"root\""),
        (
            "[[auth.api_keys]]\nname = \"a\"\nkey_file = \"k\"\nscopes = [\"daemon.reed\"]",
            "did you mean \"daemon.read\"",
        ),
        ("[[auth.api_keys]]\nname = \"token\"\nkey_file = \"k\"\nrole = \"user\"", "is reserved"),
        ("[[auth.api_keys]]\nname = \"a\"\nkey_env = \"NOT_SET\"\nrole = \"user\"", "is not set"),
        ("[auth]\nloopback = \"required\"", "no credential is configured"),
    ] {
        let complaints = toml(text).complaints().join("\n");
        assert!(complaints.contains(says) && !complaints.contains("very-secret"), "{text}: {complaints}");
    }
    assert!(env(&[("CLAWMUX_TOKEN", "")]).complaints()[0].contains("CLAWMUX_TOKEN is empty"));
}

#[test]
fn off_loopback_without_credentials_is_a_complaint_with_its_place() {
    let open = Given { listen: vec!["0.0.0.0:18789"], ..env(&[]) };
    let complaints = open.complaints();
    assert!(
        complaints[0].starts_with("--listen: ") && complaints[0].contains("CLAWMUX_TOKEN"),
        "{complaints:?}"
    );
    assert!(Given { env: vec![("CLAWMUX_TOKEN", "0123456789abcdef")], ..open }.with(load).is_ok());
}

#[test]
fn limits_that_nothing_passes_are_refused() {
    for burst in [1, 4] {
        let text = format!("[limits]\nrequests_burst = {burst}");
        assert!(toml(&text).complaints()[0].contains("a prompt costs 5"));
    }
    assert_eq!(toml("[limits]\nrequests_burst = 0").config().limits.requests_burst, 0);
    let complaints = toml("[gateway]\nheartbeat_timeout_ms = 30000").complaints();
    assert!(complaints[0].starts_with("gateway.toml:2: gateway.heartbeat_timeout_ms"), "{complaints:?}");
}

#[test]
fn no_debug_output_of_a_configuration_holds_a_secret() {
    let given = env(&[("CLAWMUX_TOKEN", "hush-hush-hush-hush"), ("OPENAI_API_KEY", "hush-too")]);
    assert!(!format!("{:?}", given.loaded()).contains("hush"));
}

proptest! {
    #[test]
    fn no_file_panics(text in any::<String>()) {
        let _ = toml(&text).with(load);
    }

    #[test]
    fn no_variable_panics(name in "[A-Z_]{0,24}", value in any::<String>()) {
        let name = format!("CLAWMUX__{name}");
        let _ = env(&[(&name, &value)]).with(load);
    }

    /// Whatever stands in place of a value, the complaint names its line.
    #[test]
    fn wrong_values_have_lines(
        value in prop_oneof![Just("1.5"), Just("[]"), Just("{}"), Just("1979-05-27"), Just("[[1]]"), Just("-1")],
        lines_before in 0_usize..5,
    ) {
        let text = format!("{}[limits]\nqueue = {value}\n", "\n".repeat(lines_before));
        let complaints = toml(&text).complaints();
        prop_assert!(complaints[0].starts_with(&format!("gateway.toml:{}: limits.queue", lines_before + 2)), "{complaints:?}");
    }
}
