//! What the manual pages say besides what the definitions of the commands do.

use super::examples;

/// A section of a page: its heading, and what there is to look up in it.
type Section = (&'static str, Vec<(&'static str, &'static str)>);

/// What commands write for scripts.
const OUTPUT: &[(&str, &str)] = &[
    (
        "--json",
        "Commands that list something write one JSON object a line (JSON Lines): sessions, session show, tail and \
         export, connections, plugins, skills, memory, approvals, devices, tokens, jobs, job runs, events, models, \
         config get, reference without a protocol. All others write one object.",
    ),
    (
        "tables",
        "On a terminal they fit its width. Into a pipe or a file nothing is shortened and nothing coloured.",
    ),
];

/// Files that every command looks for.
const FILES: &[(&str, &str)] = &[
    ("~/.clawmux", "The home, where neither --home, $CLAWMUX_HOME nor $STATE_DIRECTORY names another."),
    ("HOME/gateway.toml", "The configuration. `clawmux config get` shows every key."),
    ("HOME/.xeno/gateway.sock", "The Unix socket over which commands reach the daemon."),
];

/// Those that only the daemon and few commands do.
const MORE_FILES: &[(&str, &str)] = &[
    ("/etc/clawmux/gateway.toml", "The configuration of the whole machine; that of the home goes before it."),
    (
        "HOME/clawmux.db",
        "The store: sessions, credentials, jobs, memories and usage (store.path names another).",
    ),
    ("HOME/SOUL.md", "What the agents are told about themselves."),
    ("HOME/HEARTBEAT.md", "What is asked at each beat of scheduler.heartbeat_minutes."),
    ("HOME/skills/", "Skills: folders with a SKILL.md, for agents with \"skills\" among their tools."),
    (
        "HOME/plugins/",
        "Plugins that can be loaded by name: NAME.wasm, and NAME.toml where it has a manifest.",
    ),
];

/// Variables that every command looks at.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("CLAWMUX_HOME", "The home."),
    ("CLAWMUX_CONFIG", "The configuration file, as --config."),
    ("NO_COLOR", "Where it is set and not empty, nothing is coloured; as where TERM is dumb."),
];

/// Those that only the daemon and few commands do.
const MORE_ENVIRONMENT: &[(&str, &str)] = &[
    ("STATE_DIRECTORY", "The home under systemd, where CLAWMUX_HOME is not set."),
    (
        "CLAWMUX__SECTION__KEY",
        "A key of the configuration, such as CLAWMUX__LIMITS__QUEUE; goes before the files.",
    ),
    ("CLAWMUX_TOKEN", "The shared operator token; `clawmux chat --url` shows it as its credential."),
    ("CLAWMUX_JWT_SECRET", "The secret that signs JWTs, of at least 32 bytes."),
    (
        "ANTHROPIC_API_KEY, OPENAI_API_KEY, OPENROUTER_API_KEY, GEMINI_API_KEY, MISTRAL_API_KEY, DEEPSEEK_API_KEY, \
         GROQ_API_KEY",
        "Keys of model providers; `*_env` in the configuration names others.",
    ),
    (
        "ANTHROPIC_BASE_URL, OPENAI_BASE_URL",
        "Where these providers are asked, unless providers.NAME.base_url names another place.",
    ),
    ("OLLAMA_HOST", "Where Ollama is, unless the configuration says so [default: 127.0.0.1:11434]."),
    ("LISTEN_FDS, NOTIFY_SOCKET, JOURNAL_STREAM", "How systemd passes sockets and hears of the daemon."),
];

/// How commands end.
const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "It went well."),
    ("1", "It failed; stderr says why."),
    ("2", "It was called wrongly."),
    ("64", "The configuration is bad."),
    ("69", "No daemon is reachable."),
    ("130", "Ctrl-C ended it."),
];

/// The sections of the page of a command, by its words, such as `session tail`.
pub(super) fn of(words: &str) -> Vec<Section> {
    let is_whole = matches!(words, "" | "serve");
    let both = |own: &'static [_], more: &'static [_]| {
        let more: &[(&str, &str)] = if is_whole { more } else { &[] };
        [own, more].concat()
    };
    let mut sections: Vec<Section> = vec![("EXAMPLES", examples::of(words))];
    if words.is_empty() {
        sections.push(("OUTPUT", OUTPUT.to_vec()));
    }
    sections.push(("FILES", both(FILES, MORE_FILES)));
    sections.push(("ENVIRONMENT", both(ENVIRONMENT, MORE_ENVIRONMENT)));
    sections.push(("EXIT STATUS", EXIT_STATUS.to_vec()));
    sections.retain(|(_, entries)| !entries.is_empty());
    sections
}
