//! Which agent answers whom.
//!
//! A binding matches only where everything it names matches, so a peer of one channel is not the
//! same name in another. Among those that match, the one that names the most specific thing wins:
//! peer, then guild, team, account, channel, then one that names nothing, then the default agent.
//! Among equals the first in the file wins. (Source: exoclaw FR-004.)
//!
//! The session is that of agent, channel, account and peer. Where the binding that decided names a guild
//! or a team, the same peer elsewhere is another one: the peer's part of the key then begins with what the
//! binding names, `guild/G/PEER`, `team/T/PEER` or `guild/G/team/T/PEER`, a `/` or `%` in a name percent-encoded.
//! So a key is as it ever was where no binding names any. Where one does from now on, what was said under
//! the key without it stays there, and can be gone on with by that key.

use std::borrow::Cow;

use crate::error::{Error, ErrorCode};
use crate::ids::{AgentId, SessionKey};
use crate::target::Route;

/// One `[[bindings]]` entry: the agent answers what matches everything it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The agent that gets what matches.
    pub agent: AgentId,
    /// The channel to match; any where none is given.
    pub channel: Option<String>,
    /// The account to match; any where none is given.
    pub account: Option<String>,
    /// The peer to match; any where none is given.
    pub peer: Option<String>,
    /// The guild to match; any where none is given.
    pub guild: Option<String>,
    /// The team to match; any where none is given.
    pub team: Option<String>,
}

impl Binding {
    /// How specific it is: the higher, the earlier it is asked.
    fn specificity(&self) -> u8 {
        if self.peer.is_some() {
            5
        } else if self.guild.is_some() {
            4
        } else if self.team.is_some() {
            3
        } else if self.account.is_some() {
            2
        } else {
            u8::from(self.channel.is_some())
        }
    }

    fn matches(&self, route: &Route) -> bool {
        let agrees = |named: &Option<String>, actual: Option<&str>| match named {
            Some(named) => actual == Some(named.as_str()),
            None => true,
        };
        agrees(&self.channel, Some(&route.channel))
            && agrees(&self.account, Some(&route.account))
            && agrees(&self.peer, Some(peer(route)))
            && agrees(&self.guild, route.guild.as_deref())
            && agrees(&self.team, route.team.as_deref())
    }
}

/// The bindings, in the order they are asked, and the agent for everybody else.
#[derive(Clone, Debug)]
pub struct Router {
    bindings: Vec<Binding>,
    default: Option<AgentId>,
}

impl Router {
    /// Of the bindings in the order of their file.
    pub fn new(mut bindings: Vec<Binding>, default: Option<AgentId>) -> Self {
        // The sort is stable: equals stay in the order of the file.
        bindings.sort_by_key(|binding| std::cmp::Reverse(binding.specificity()));
        Self { bindings, default }
    }

    /// The agent that answers `route`.
    ///
    /// # Errors
    /// `NotFound`, in the words exoclaw's clients know, where no binding matches and there is no default.
    pub fn resolve(&self, route: &Route) -> Result<&AgentId, Error> {
        self.decide(route).map(|(agent, _)| agent)
    }

    /// Whether a binding that names the channel is for `route`: one that names none is for everybody.
    pub fn is_bound(&self, route: &Route) -> bool {
        let mut named = self.bindings.iter().filter(|binding| binding.channel.is_some());
        named.any(|binding| binding.matches(route))
    }

    /// The agent, and the binding that says so.
    fn decide(&self, route: &Route) -> Result<(&AgentId, Option<&Binding>), Error> {
        let binding = self.bindings.iter().find(|binding| binding.matches(route));
        binding
            .map(|binding| &binding.agent)
            .or(self.default.as_ref())
            .map(|agent| (agent, binding))
            .ok_or_else(|| {
                ErrorCode::NotFound.error(format!(
                    "no agent configured for {}:{}:{}",
                    route.channel,
                    route.account,
                    peer(route)
                ))
            })
    }

    /// The session `route` leads to: that of its agent, channel, account and peer (by default
    /// [`SessionKey::DEFAULT_PEER`]), the peer within the guild and the team that its binding names.
    ///
    /// # Errors
    /// As [`Self::resolve`], and `InvalidRequest` where the parts don't make a key.
    pub fn session_key(&self, route: &Route) -> Result<SessionKey, Error> {
        let (agent, binding) = self.decide(route)?;
        let named = binding.map(|binding| (binding.guild.as_deref(), binding.team.as_deref()));
        let peer = match named.unwrap_or_default() {
            (None, None) => Cow::Borrowed(peer(route)),
            (guild, team) => Cow::Owned(within(guild, team, peer(route))),
        };
        SessionKey::new(agent.as_str(), &route.channel, &route.account, &peer)
    }
}

/// A peer of a guild, of a team, or of both.
fn within(guild: Option<&str>, team: Option<&str>, peer: &str) -> String {
    let encoded = |name: &str| name.replace('%', "%25").replace('/', "%2F");
    let part = |kind: &str, name: Option<&str>| {
        name.map(|name| format!("{kind}/{}/", encoded(name))).unwrap_or_default()
    };
    format!("{}{}{}", part("guild", guild), part("team", team), encoded(peer))
}

fn peer(route: &Route) -> &str {
    route.peer.as_deref().unwrap_or(SessionKey::DEFAULT_PEER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIELDS: [&str; 5] = ["channel", "account", "team", "guild", "peer"];

    fn binding(agent: &str, named: &[(&str, &str)]) -> Binding {
        let get = |field: &str| named.iter().find(|(name, _)| *name == field).map(|(_, v)| (*v).to_owned());
        Binding {
            agent: agent.into(),
            channel: get("channel"),
            account: get("account"),
            peer: get("peer"),
            guild: get("guild"),
            team: get("team"),
        }
    }

    fn route(channel: &str, account: &str) -> Route {
        Route { channel: channel.into(), account: account.into(), ..Route::default() }
    }

    fn full() -> Route {
        Route {
            peer: Some("p".into()),
            guild: Some("g".into()),
            team: Some("t".into()),
            ..route("telegram", "bot")
        }
    }

    #[test]
    fn the_most_specific_binding_wins_wherever_it_stands() {
        let values =
            [("channel", "telegram"), ("account", "bot"), ("team", "t"), ("guild", "g"), ("peer", "p")];
        // Least specific first: the order of the file must not matter between levels.
        let all: Vec<Binding> = values.iter().map(|pair| binding(pair.0, &[*pair])).collect();
        for most in 1..=all.len() {
            let router = Router::new(all[..most].to_vec(), Some("default".into()));
            assert_eq!(router.resolve(&full()).unwrap().as_str(), FIELDS[most - 1]);
        }
        let router = Router::new(vec![], Some("default".into()));
        assert_eq!(router.resolve(&full()).unwrap().as_str(), "default");
    }

    #[test]
    fn a_peer_of_one_channel_is_not_the_same_name_in_another() {
        let router = Router::new(
            vec![binding("vip", &[("channel", "telegram"), ("peer", "bob")])],
            Some("main".into()),
        );
        let bob = |channel| Route { peer: Some("bob".into()), ..route(channel, "bot") };
        assert_eq!(router.resolve(&bob("telegram")).unwrap().as_str(), "vip");
        assert_eq!(router.resolve(&bob("discord")).unwrap().as_str(), "main");
    }

    #[test]
    fn the_first_of_equals_wins() {
        let router = Router::new(
            vec![
                binding("first", &[("channel", "telegram"), ("account", "bot")]),
                binding("second", &[("account", "bot")]),
            ],
            None,
        );
        assert_eq!(router.resolve(&route("telegram", "bot")).unwrap().as_str(), "first");
        assert_eq!(router.resolve(&route("discord", "bot")).unwrap().as_str(), "second");
    }

    #[test]
    fn nobody_at_home_is_said_in_exoclaws_words() {
        let router = Router::new(vec![], None);
        let error = router.resolve(&route("websocket", "user-123")).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotFound);
        assert_eq!(error.message, "no agent configured for websocket:user-123:main");
        let error = router.session_key(&Route { peer: Some("x".into()), ..route("a", "b") }).unwrap_err();
        assert_eq!(error.message, "no agent configured for a:b:x");
    }

    #[test]
    fn the_peer_of_a_session_defaults_to_main() {
        let router = Router::new(vec![], Some("main".into()));
        let key = |route: &Route| router.session_key(route).unwrap().as_str().to_owned();
        assert_eq!(key(&route("websocket", "user-123")), "main:websocket:user-123:main");
        assert_eq!(key(&full()), "main:telegram:bot:p");
        assert_eq!(router.session_key(&route("", "x")).unwrap_err().code, ErrorCode::InvalidRequest);
    }

    #[test]
    fn a_peer_of_two_guilds_has_two_sessions_where_a_binding_names_them() {
        let router = Router::new(
            vec![
                binding("work", &[("channel", "discord"), ("guild", "a")]),
                binding("work", &[("channel", "discord"), ("guild", "b")]),
                binding("work", &[("channel", "discord"), ("guild", "c/d"), ("team", "t")]),
                binding("work", &[("channel", "slack"), ("team", "t:1")]),
            ],
            Some("main".into()),
        );
        let key = |channel: &str, guild: &str, team: Option<&str>, peer: Option<&str>| {
            let route = Route {
                guild: Some(guild.into()),
                team: team.map(str::to_owned),
                peer: peer.map(str::to_owned),
                ..route(channel, "bot")
            };
            router.session_key(&route).unwrap().as_str().to_owned()
        };
        assert_eq!(key("discord", "a", None, Some("p")), "work:discord:bot:guild/a/p");
        assert_eq!(key("discord", "b", None, Some("p")), "work:discord:bot:guild/b/p");
        assert_eq!(key("discord", "a", Some("t"), None), "work:discord:bot:guild/a/main", "no team is named");
        let both = key("discord", "c/d", Some("t"), Some("p"));
        assert_eq!(both, "work:discord:bot:guild/c%252Fd/team/t/p");
        assert_eq!(key("slack", "a", Some("t:1"), Some("p")), "work:slack:bot:team/t%3A1/p");
        // Nobody names it: as ever.
        assert_eq!(key("discord", "z", Some("y"), Some("p")), "main:discord:bot:p");
    }

    fn name() -> impl Strategy<Value = Option<String>> {
        proptest::option::of("[ab]")
    }

    prop_compose! {
        fn any_binding()(agent in "[xyz]", channel in name(), account in name(), peer in name(),
                         guild in name(), team in name()) -> Binding {
            Binding { agent: agent.into(), channel, account, peer, guild, team }
        }
    }

    prop_compose! {
        fn any_route()(channel in "[ab]", account in "[ab]", peer in name(), guild in name(), team in name())
                       -> Route {
            Route { channel, account, peer, guild, team }
        }
    }

    proptest! {
        /// Against the rule said in another way: look level by level, in the order of the file.
        #[test]
        fn resolves_as_the_levels_say(bindings in proptest::collection::vec(any_binding(), 0..8),
                                      route in any_route()) {
            let fits = |b: &Binding| {
                b.channel.as_ref().is_none_or(|c| *c == route.channel)
                    && b.account.as_ref().is_none_or(|a| *a == route.account)
                    && b.peer.as_ref().is_none_or(|p| p == route.peer.as_deref().unwrap_or("main"))
                    && b.guild.as_ref().is_none_or(|g| Some(g) == route.guild.as_ref())
                    && b.team.as_ref().is_none_or(|t| Some(t) == route.team.as_ref())
            };
            let levels: [fn(&Binding) -> bool; 6] = [
                |b| b.peer.is_some(),
                |b| b.guild.is_some(),
                |b| b.team.is_some(),
                |b| b.account.is_some(),
                |b| b.channel.is_some(),
                |_| true,
            ];
            let expected = levels.iter().find_map(|level| bindings.iter().find(|b| level(b) && fits(b)));
            let router = Router::new(bindings.clone(), None);
            match (router.resolve(&route), expected) {
                (Ok(agent), Some(binding)) => prop_assert_eq!(agent, &binding.agent),
                (Err(error), None) => prop_assert_eq!(error.code, ErrorCode::NotFound),
                (found, expected) => prop_assert!(false, "{:?} instead of {:?}", found, expected),
            }
        }

        /// Whatever the names: another guild, team or peer within one binding's is another key.
        #[test]
        fn no_two_peers_share_a_key(one in ["[a/%:]{1,4}", "[a/%:]{1,4}", "[a/%:]{1,4}"],
                                    two in ["[a/%:]{1,4}", "[a/%:]{1,4}", "[a/%:]{1,4}"]) {
            let key = |[guild, team, peer]: &[String; 3]| {
                let named = [("guild", guild.as_str()), ("team", team.as_str())];
                let router = Router::new(vec![binding("x", &named)], None);
                let (guild, team) = (Some(guild.clone()), Some(team.clone()));
                let route = Route { guild, team, peer: Some(peer.clone()), ..route("c", "a") };
                router.session_key(&route).unwrap()
            };
            prop_assert_eq!(key(&one) == key(&two), one == two);
        }

        #[test]
        fn one_more_default_never_changes_what_a_binding_decides(
            bindings in proptest::collection::vec(any_binding(), 0..8), route in any_route()) {
            let without = Router::new(bindings.clone(), None);
            let with = Router::new(bindings, Some("fallback".into()));
            match without.resolve(&route) {
                Ok(agent) => prop_assert_eq!(with.resolve(&route).unwrap(), agent),
                Err(_) => prop_assert_eq!(with.resolve(&route).unwrap().as_str(), "fallback"),
            }
        }
    }
}
