//! What an environment offers a newcomer: the model providers whose keys or addresses it has, and the
//! servers that may run on the machine. Whether they answer is for others to find out.

use std::net::Ipv6Addr;

use crate::access::Secret;
use crate::config::{Provider, is_base_url, url_of_variable};
use crate::provider::ProviderKind;

/// Where Ollama listens by itself: its port.
const OLLAMA_PORT: &str = "11434";
/// Where it is looked for if the environment says nothing.
const OLLAMA: &str = "127.0.0.1";
/// Where a server of llama.cpp listens by itself.
const LLAMA_CPP: &str = "http://127.0.0.1:8080/v1";

/// A provider that may be there.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Its name in `[providers]`.
    pub name: &'static str,
    /// The name for people.
    pub title: &'static str,
    /// How requests reach it.
    pub provider: Provider,
    /// The variable that says where it is; none = it is where it usually is.
    pub url_variable: Option<&'static str>,
    /// The variable that its key is in; none where it is asked without one.
    pub key_variable: Option<&'static str>,
    /// Whether it is a server that may or may not run, on this machine or where a variable says.
    pub is_server: bool,
}

/// What this environment offers, the best first: services whose key is there, then servers.
pub fn offers(env: &[(String, String)]) -> Vec<Offer> {
    let value = |name: &str| {
        let found = env.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    };
    let mut offers = Vec::new();
    let services = ProviderKind::ALL.into_iter().filter(|kind| is_service(*kind));
    for (kind, preset) in services.map(|kind| (kind, kind.preset())) {
        let named = value(preset.url_variable).and_then(|url| url_of_variable(kind, url));
        let key = value(preset.key_variable);
        let is_own = named.as_deref().is_some_and(|url| !kind.is_home(url));
        if key.is_none() && !is_own {
            continue;
        }
        let base_url = named.as_deref().unwrap_or(preset.base_url);
        offers.push(Offer {
            name: preset.name,
            title: match kind {
                ProviderKind::Anthropic if is_own => "Anthropic-compatible server",
                _ if is_own => "OpenAI-compatible server",
                _ => preset.title,
            },
            provider: Provider::new(kind, base_url, key.map(Secret::new)),
            url_variable: named.as_ref().map(|_| preset.url_variable),
            key_variable: key.map(|_| preset.key_variable),
            is_server: is_own && key.is_none(),
        });
    }
    let ollama = ProviderKind::Ollama;
    let host = value(ollama.preset().url_variable);
    let servers = [
        (ollama, "ollama", "Ollama", host.unwrap_or(OLLAMA), host.map(|_| ollama.preset().url_variable)),
        (ProviderKind::OpenAi, "llamacpp", "llama.cpp", LLAMA_CPP, None),
    ];
    for (kind, name, title, address, url_variable) in servers {
        let Some(base_url) = url_of_variable(kind, address) else { continue };
        if offers.iter().any(|other: &Offer| other.provider.base_url == base_url) {
            continue;
        }
        let provider = Provider::new(kind, &base_url, None);
        offers.push(Offer { name, title, provider, url_variable, key_variable: None, is_server: true });
    }
    offers
}

/// Whether it is a service with a key of its own, asked in the format that it is usually asked in.
pub fn is_service(kind: ProviderKind) -> bool {
    !kind.preset().key_variable.is_empty() && kind != ProviderKind::OpenAiResponses
}

/// The base URL of an Ollama by what its own variable says: `HOST`, `HOST:PORT`, `:PORT` or a URL. What it
/// listens on everywhere is asked on this machine. None where it can't be understood.
pub(super) fn ollama_url(host: &str) -> Option<String> {
    let (scheme, rest, port) = match host.split_once("://") {
        None => ("http", host, OLLAMA_PORT),
        Some(("http", rest)) => ("http", rest, "80"),
        Some(("https", rest)) => ("https", rest, "443"),
        Some(_) => return None,
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (name, port) = match authority.rsplit_once(':') {
        _ if authority.parse::<Ipv6Addr>().is_ok() => (format!("[{authority}]"), port),
        Some((name, port)) if !port.contains(']') => (name.to_owned(), port),
        _ => (authority.to_owned(), port),
    };
    let name = match name.as_str() {
        "" | "0.0.0.0" => OLLAMA,
        "[::]" => "[::1]",
        name => name,
    };
    port.parse::<u16>().ok()?;
    let path = path.trim_end_matches('/');
    let slash = if path.is_empty() { "" } else { "/" };
    let url = format!("{scheme}://{name}:{port}{slash}{path}/v1");
    is_base_url(&url).then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(env: &[(&str, &str)]) -> Vec<Offer> {
        let env: Vec<(String, String)> =
            env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        offers(&env)
    }

    fn short(offers: &[Offer]) -> Vec<(&str, &str)> {
        offers.iter().map(|offer| (offer.name, offer.provider.base_url.as_str())).collect()
    }

    const LOCAL: [(&str, &str); 2] = [("ollama", "http://127.0.0.1:11434/v1"), ("llamacpp", LLAMA_CPP)];

    #[test]
    fn keys_come_before_servers() {
        assert_eq!(short(&of(&[])), LOCAL);
        assert_eq!(short(&of(&[("OPENAI_API_KEY", " "), ("OPENAI_BASE_URL", "nonsense")])), LOCAL);
        let all = of(&[("OPENAI_API_KEY", "o"), ("ANTHROPIC_API_KEY", "a")]);
        let services = [("anthropic", "https://api.anthropic.com"), ("openai", "https://api.openai.com/v1")];
        assert_eq!(short(&all), [&services[..], &LOCAL].concat());
        assert_eq!(all[0].key_variable, Some("ANTHROPIC_API_KEY"));
        assert_eq!(all[0].provider.api_key, Some(Secret::new("a")));
        assert!(!all[0].is_server && all[2].is_server);
        assert!(!format!("{all:?}").contains("\"a\""), "keys are not shown");
    }

    #[test]
    fn addresses_of_the_environment_are_honoured() {
        let own = of(&[("OPENAI_BASE_URL", "http://127.0.0.1:11434/v1/"), ("OPENAI_API_KEY", "o")]);
        assert_eq!(short(&own), [("openai", "http://127.0.0.1:11434/v1"), LOCAL[1]], "the same server once");
        assert_eq!((own[0].url_variable, own[0].is_server), (Some("OPENAI_BASE_URL"), false));
        let keyless = of(&[("OPENAI_BASE_URL", "http://lab:1/v1")]);
        assert_eq!((keyless[0].name, keyless[0].is_server, keyless[0].key_variable), ("openai", true, None));
        let ollama = of(&[("OLLAMA_HOST", "gpu.lan:9999")]);
        assert_eq!(ollama[0].provider.base_url, "http://gpu.lan:9999/v1");
        assert_eq!(ollama[0].url_variable, Some("OLLAMA_HOST"));
    }

    #[test]
    fn ollama_is_found_by_all_that_its_variable_may_say() {
        for (host, url) in [
            ("127.0.0.1", Some("http://127.0.0.1:11434/v1")),
            ("0.0.0.0", Some("http://127.0.0.1:11434/v1")),
            ("0.0.0.0:99", Some("http://127.0.0.1:99/v1")),
            (":8000", Some("http://127.0.0.1:8000/v1")),
            ("gpu", Some("http://gpu:11434/v1")),
            ("http://gpu", Some("http://gpu:80/v1")),
            ("https://gpu/ollama/", Some("https://gpu:443/ollama/v1")),
            ("http://gpu:11434/", Some("http://gpu:11434/v1")),
            ("[::1]:5", Some("http://[::1]:5/v1")),
            ("::1", Some("http://[::1]:11434/v1")),
            ("[::]:7", Some("http://[::1]:7/v1")),
            ("ftp://gpu", None),
            ("gpu:many", None),
            ("me:pw@gpu", None),
            ("a b", None),
        ] {
            assert_eq!(ollama_url(host).as_deref(), url, "{host}");
        }
    }
}
