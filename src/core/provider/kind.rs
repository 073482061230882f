//! The kinds of providers: in which format each is asked, where its service is, and in what it differs from
//! others that speak the same format.
//!
//! Source: the API references of the services. What is not known of one is as OpenAI has it.

use std::fmt;

use super::address;
use super::format::Format;
use super::quirks::{Effort, LengthField, Quirks};

/// The kinds of providers, in the order in which one is chosen where nobody chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProviderKind {
    /// The Anthropic Messages API.
    Anthropic,
    /// OpenAI chat completions, and any server that speaks them.
    OpenAi,
    /// OpenAI's Responses API, and any server that speaks it.
    OpenAiResponses,
    /// OpenRouter.
    OpenRouter,
    /// Google's Gemini, as it speaks OpenAI's format.
    Gemini,
    /// Mistral.
    Mistral,
    /// DeepSeek.
    DeepSeek,
    /// Groq.
    Groq,
    /// A server of Ollama.
    Ollama,
    /// Built in, deterministic, no network.
    Offline,
}

/// What is known of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// The kind.
    pub kind: ProviderKind,
    /// Its name in the configuration.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// The format it is asked in.
    pub format: Format,
    /// Where its own service is; empty for one without a network.
    pub base_url: &'static str,
    /// Whether that is a server that people run themselves, which wants no key.
    pub is_server: bool,
    /// The variable of the environment that holds the key of its service; empty where there is none.
    pub key_variable: &'static str,
    /// The variable that says where it is, as its other clients honour it; empty where there is none.
    pub url_variable: &'static str,
    /// The model of an agent that names none, where one is known to stay; else the service's list is asked.
    pub default_model: Option<&'static str>,
    /// In what it differs.
    pub quirks: Quirks,
}

/// What most are like.
const USUAL: Preset = Preset {
    kind: ProviderKind::OpenAi,
    name: "",
    title: "",
    format: Format::Chat,
    base_url: "",
    is_server: false,
    key_variable: "",
    url_variable: "",
    default_model: None,
    quirks: Quirks::USUAL,
};

/// All kinds, in their order.
static PRESETS: [Preset; 10] = [
    Preset {
        kind: ProviderKind::Anthropic,
        name: "anthropic",
        title: "Anthropic",
        format: Format::Anthropic,
        base_url: "https://api.anthropic.com",
        key_variable: "ANTHROPIC_API_KEY",
        url_variable: "ANTHROPIC_BASE_URL",
        default_model: Some("claude-sonnet-4-5"),
        ..USUAL
    },
    Preset {
        kind: ProviderKind::OpenAi,
        name: "openai",
        title: "OpenAI",
        base_url: "https://api.openai.com/v1",
        key_variable: "OPENAI_API_KEY",
        url_variable: "OPENAI_BASE_URL",
        default_model: Some("gpt-4o"),
        // Its newer models refuse the other name.
        quirks: Quirks { length: LengthField::MaxCompletionTokens, ..Quirks::USUAL },
        ..USUAL
    },
    Preset {
        kind: ProviderKind::OpenAiResponses,
        name: "openai-responses",
        title: "OpenAI (Responses API)",
        format: Format::Responses,
        base_url: "https://api.openai.com/v1",
        key_variable: "OPENAI_API_KEY",
        url_variable: "OPENAI_BASE_URL",
        default_model: Some("gpt-4o"),
        ..USUAL
    },
    Preset {
        kind: ProviderKind::OpenRouter,
        name: "openrouter",
        title: "OpenRouter",
        base_url: "https://openrouter.ai/api/v1",
        key_variable: "OPENROUTER_API_KEY",
        // It chooses one of the many there are.
        default_model: Some("openrouter/auto"),
        quirks: Quirks { effort: Effort::Nested, thoughts: None, ..Quirks::USUAL },
        ..USUAL
    },
    Preset {
        kind: ProviderKind::Gemini,
        name: "gemini",
        title: "Google Gemini",
        base_url: "https://generativelanguage.googleapis.com/v1beta/openai",
        key_variable: "GEMINI_API_KEY",
        default_model: Some("gemini-flash-latest"),
        quirks: Quirks { thoughts: None, signs_calls: true, ..Quirks::USUAL },
        ..USUAL
    },
    Preset {
        kind: ProviderKind::Mistral,
        name: "mistral",
        title: "Mistral",
        base_url: "https://api.mistral.ai/v1",
        key_variable: "MISTRAL_API_KEY",
        default_model: Some("mistral-large-latest"),
        // It refuses what it does not know.
        quirks: Quirks {
            has_stream_options: false,
            effort: Effort::Never,
            thoughts: None,
            has_short_ids: true,
            ..Quirks::USUAL
        },
        ..USUAL
    },
    Preset {
        kind: ProviderKind::DeepSeek,
        name: "deepseek",
        title: "DeepSeek",
        base_url: "https://api.deepseek.com/v1",
        key_variable: "DEEPSEEK_API_KEY",
        quirks: Quirks { effort: Effort::Switch, ..Quirks::USUAL },
        ..USUAL
    },
    Preset {
        kind: ProviderKind::Groq,
        name: "groq",
        title: "Groq",
        base_url: "https://api.groq.com/openai/v1",
        key_variable: "GROQ_API_KEY",
        quirks: Quirks {
            length: LengthField::MaxCompletionTokens,
            effort: Effort::Groq,
            thoughts: None,
            ..Quirks::USUAL
        },
        ..USUAL
    },
    Preset {
        kind: ProviderKind::Ollama,
        name: "ollama",
        title: "Ollama",
        base_url: "http://127.0.0.1:11434/v1",
        is_server: true,
        url_variable: "OLLAMA_HOST",
        quirks: Quirks { thoughts: Some("reasoning"), ..Quirks::USUAL },
        ..USUAL
    },
    Preset {
        kind: ProviderKind::Offline,
        name: "offline",
        title: "the built-in offline model",
        format: Format::Offline,
        default_model: Some("offline"),
        ..USUAL
    },
];

impl ProviderKind {
    /// All kinds, in their order.
    pub const ALL: [Self; 10] = [
        Self::Anthropic,
        Self::OpenAi,
        Self::OpenAiResponses,
        Self::OpenRouter,
        Self::Gemini,
        Self::Mistral,
        Self::DeepSeek,
        Self::Groq,
        Self::Ollama,
        Self::Offline,
    ];

    /// What is known of it.
    pub fn preset(self) -> &'static Preset {
        &PRESETS[self as usize]
    }

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        self.preset().name
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The format it is asked in.
    pub fn format(self) -> Format {
        self.preset().format
    }

    /// In what it differs at this base URL. Who names a known service by its address alone gets its quirks too.
    pub fn quirks(self, base_url: &str) -> Quirks {
        if self != Self::OpenAi || address::is_openai(base_url) {
            return self.preset().quirks;
        }
        let host = address::host(base_url);
        let is_there = |preset: &&Preset| {
            preset.format == Format::Chat
                && !preset.is_server
                && address::host(preset.base_url).eq_ignore_ascii_case(host)
        };
        PRESETS.iter().find(is_there).map_or(Quirks::USUAL, |preset| preset.quirks)
    }

    /// Whether this base URL is that of its own service, however it is written.
    pub fn is_home(self, base_url: &str) -> bool {
        let home = self.preset().base_url;
        let of = |base_url| address::api_root(self.format(), base_url);
        !home.is_empty() && !base_url.is_empty() && of(home).eq_ignore_ascii_case(&of(base_url))
    }

    /// The model of an agent that names none, at this base URL. None for servers that have models of their own:
    /// a service's are not asked of anybody but that service.
    pub fn default_model(self, base_url: &str) -> Option<&'static str> {
        let default = self.preset().default_model?;
        let is_there = match self {
            Self::Offline => true,
            Self::OpenAi | Self::OpenAiResponses => address::is_openai(base_url),
            // Proxies of Anthropic have its models; a server on this host has its own.
            Self::Anthropic => !address::is_loopback(base_url),
            _ => self.is_home(base_url),
        };
        is_there.then_some(default)
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_row() {
        for (at, kind) in ProviderKind::ALL.into_iter().enumerate() {
            let preset = kind.preset();
            assert_eq!((preset.kind, kind as usize), (kind, at));
            assert_eq!(ProviderKind::from_name(preset.name), Some(kind));
            let is_service = kind != ProviderKind::Offline && !preset.is_server;
            assert_eq!(preset.key_variable.is_empty(), !is_service, "{kind}");
            assert_eq!(kind.is_home(preset.base_url), kind != ProviderKind::Offline, "{kind}");
            assert!(!preset.title.is_empty(), "{kind}");
        }
        assert_eq!(ProviderKind::from_name("OpenAI"), None);
    }

    #[test]
    fn home_is_home_however_it_is_written() {
        use ProviderKind::{Anthropic, DeepSeek, Gemini, Groq, OpenAi};
        for (kind, url, is_home) in [
            (OpenAi, "https://api.openai.com", true),
            (OpenAi, "https://API.openai.com/v1/", true),
            (OpenAi, "https://api.openai.com.evil.test/v1", false),
            (Anthropic, "https://api.anthropic.com/v1", true),
            (Groq, "https://api.groq.com/openai", true),
            (DeepSeek, "https://api.deepseek.com", true),
            (Gemini, "https://generativelanguage.googleapis.com/v1beta/openai/", true),
            (Groq, "http://127.0.0.1:1/openai/v1", false),
            (OpenAi, "", false),
        ] {
            assert_eq!(kind.is_home(url), is_home, "{kind} {url}");
        }
    }

    #[test]
    fn a_known_service_has_its_quirks_by_whatever_kind_it_is_named() {
        let of = |url| ProviderKind::OpenAi.quirks(url);
        assert_eq!(of("https://api.openai.com/v1").length, LengthField::MaxCompletionTokens);
        assert_eq!(of("https://eu.API.openai.com/v1").length, LengthField::MaxCompletionTokens);
        assert_eq!(of("https://api.mistral.ai/v1"), ProviderKind::Mistral.preset().quirks);
        for other in ["http://127.0.0.1:8080/v1", "https://api.openai.com.evil.test/v1", ""] {
            assert_eq!(of(other), Quirks::USUAL, "{other}");
        }
        assert_eq!(ProviderKind::Groq.quirks("http://proxy/v1"), ProviderKind::Groq.preset().quirks);
    }

    #[test]
    fn models_of_a_service_are_asked_of_nobody_else() {
        use ProviderKind::{Anthropic, Gemini, Groq, Offline, Ollama, OpenAi, OpenAiResponses};
        for (kind, url, model) in [
            (OpenAi, "https://api.openai.com", Some("gpt-4o")),
            (OpenAiResponses, "https://eu.api.openai.com/v1", Some("gpt-4o")),
            (OpenAi, "http://127.0.0.1:8080/v1", None),
            (Gemini, Gemini.preset().base_url, Some("gemini-flash-latest")),
            (Gemini, "http://proxy/v1", None),
            (Groq, Groq.preset().base_url, None),
            (Ollama, Ollama.preset().base_url, None),
            (Offline, "", Some("offline")),
            (Anthropic, "https://proxy.example/anthropic", Some("claude-sonnet-4-5")),
            (Anthropic, "http://127.0.0.1:8080", None),
        ] {
            assert_eq!(kind.default_model(url), model, "{kind} {url}");
        }
    }
}
