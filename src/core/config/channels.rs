//! `[channels.*]`: conversations that come in from elsewhere, through adapters.

use std::time::Duration;

use super::credentials::Secrets;
use super::section::{Report, Section};
use super::{Channel, ChannelMode};
use crate::access::authority::SECRET_CHARS_MIN;
use crate::channel::NAME_BYTES_MAX;
use crate::ids::PluginName;

pub(super) fn channels(s: Section, r: &mut Report, secrets: &mut Secrets<'_>) -> Vec<Channel> {
    s.named(r).into_iter().filter_map(|(name, s)| channel(name, s, r, secrets)).collect()
}

fn channel(name: String, mut s: Section, r: &mut Report, secrets: &mut Secrets<'_>) -> Option<Channel> {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_plain) {
        let why = format!(
            "channels: expected a name of lowercase letters, digits, '-' and '_', at most {NAME_BYTES_MAX}, found {name:?}"
        );
        r.complain(&s.origin(""), why);
    }
    let adapter = PluginName::new(s.optional(r, "adapter").unwrap_or_else(|| name.clone()));
    let is_polled = s.choice(r, "mode", false, &[("webhook", false), ("poll", true)]);
    let interval = s.integer(r, "poll_interval_ms", 1000, 100..=86_400_000);
    let sought = secrets.either(&mut s, r, "secret_env", "", "secret_file");
    let allow: Vec<String> = s
        .texts(r, "allow", Some(&[]))
        .unwrap_or_default()
        .into_iter()
        .map(|text| text.value.trim().to_owned())
        .collect();
    let is_pairing = s.choice(r, "pairing", false, &[("off", false), ("code", true)]);
    let answer_url = s.optional(r, "answer_url");
    let mode = match (is_polled, sought.secret.clone()) {
        (true, _) => {
            if sought.is_named {
                r.complain(
                    &s.origin("mode"),
                    format!(
                        "channels.{name}: a secret is for webhooks; with mode = \"poll\" nobody sends any"
                    ),
                );
            }
            Some(ChannelMode::Poll(Duration::from_millis(interval)))
        }
        (false, Some(secret)) => {
            let chars = secret.expose().chars().count();
            if chars < SECRET_CHARS_MIN {
                let why = format!(
                    "channels.{name}: the secret has {chars} characters and can be guessed: use at least {SECRET_CHARS_MIN}"
                );
                r.complain(&s.origin("secret_env"), why);
            }
            if s.has("poll_interval_ms") {
                let why = format!("channels.{name}.poll_interval_ms: it is for mode = \"poll\"");
                r.complain(&s.origin("poll_interval_ms"), why);
            }
            Some(ChannelMode::Webhook(secret))
        }
        (false, None) => {
            let why = match sought.is_named {
                true => format!("channels.{name}: {} is not set", sought.described()),
                false => format!(
                    "channels.{name}: secret_env or secret_file must say where the secret is that webhook requests \
                     show; or set mode = \"poll\""
                ),
            };
            r.complain(&s.origin("mode"), why);
            None
        }
    };
    s.finish(r);
    mode.map(|mode| Channel { name, adapter, mode, allow, is_pairing, answer_url })
}
