//! `Tokens`: the API keys and JWTs that the daemon gave out.
//!
//! The rules are [`token`](clawmux_core::access::token)'s; here they are kept in the store and carried
//! out, one decision at a time. A decision is written down first; then the [`Authority`] that all
//! connections look at is renewed; then connections that it does not uphold any more are closed; and
//! then whoever asked is told. What is configured comes here too when it changes, so that one actor
//! alone says who is let in. A connection looks at the authority once more after it has joined the
//! hub, so that none slips through between the two.
//!
//! When and from where a credential was used is known at once and written down at most once a minute.
//!
//! In a cluster other daemons decide too. What they changed is read anew, between two decisions of this one, and the
//! connections are closed that it does not uphold. Whether a name is free when it is given out is said by the store.
//!
//! A daemon that is cut off from its cluster can't know what others revoked: it lets nobody new in by what was given out,
//! and closes the connections that came by that once it is so for too long.
//!
//! What ends soon is warned of in the log once a day, and when it has ended its connections are closed:
//! those that came with it before its end was set, because it was rotated, do not know of it themselves.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::access::auth::Auth;
use clawmux_core::access::authority::{Authority, Word};
use clawmux_core::access::token::{
    Change, Ledger, Moment, RotatedToken, Shown, Token, TokenCommand, TokenReply,
};
use clawmux_core::config::Config;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::Owner;
use clawmux_core::principal::Principal;
use clawmux_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::host::bound::Bound;
use crate::hub::{Broadcast, Hub, Notice, Whose};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::dispatch::Request;
use crate::runtime::observe::{Observe, Observed};
use crate::store::{
    self, Health, ReadEstate, ReadTokens, Store, TableChanged, WriteTokens, until_read, watch,
};

/// How many may wait for a decision.
const WAITING_MAX: usize = 64;

/// Uses that may wait to be noted; more are lost.
const MAILBOX: usize = 256;

/// How often is looked what has ended or was used.
const LOOK: Duration = Duration::from_secs(1);

/// How long after the end of one its connections are closed, in milliseconds.
const EXPIRY_GRACE_MS: u64 = 2000;

/// How soon the credentials are read again where that failed.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// How often the use of one is written down at most.
const WRITE_EVERY: Duration = Duration::from_secs(60);

/// How often one is warned of that ends soon.
const WARN_EVERY: Duration = Duration::from_secs(86_400);

/// So many of those that end soon are named.
const EXPIRING_TOLD: usize = 5;

/// The credentials of the store.
pub struct Tokens {
    ledger: Ledger,
    authority: Arc<Authority>,
    store: Addr<Store>,
    hub: Addr<Hub>,
    /// Whether the daemon is cut off from its cluster.
    log: Health,
    /// How long it may be while those stay who are there.
    patience: Duration,
    /// Since when it is.
    cut_off: Option<Timestamp>,
    /// How far the authority relies on what it was told.
    word: Word,
    /// Those who wait while a decision is carried out.
    waiting: VecDeque<Request<TokenCommand>>,
    is_busy: bool,
    /// Another daemon changed what is written down; dropped when that is read.
    changed: Option<oneshot::Sender<()>>,
    revoked_total: u64,
    /// When the use of one was last written down, and whether it was used since.
    noted: BTreeMap<Shown, (Timestamp, bool)>,
    /// When one was last warned of.
    warned: BTreeMap<Arc<str>, Timestamp>,
    /// Up to when it is known what has ended, by the wall clock.
    looked: Timestamp,
}

/// These are the credentials of the configuration from now on; answered when the connections are being
/// closed that were let in by one that is gone.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Reconfigure(pub Auth);

/// Somebody was let in with one.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Used {
    /// Which.
    pub shown: Shown,
    /// From where.
    pub origin: IpAddr,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Of what the store has; from then on the authority knows of it too. `log` says whether the daemon is cut off, and
    /// for so long those stay who came by what was given out.
    ///
    /// # Errors
    /// As the store's.
    pub async fn open(
        authority: Arc<Authority>,
        store: Addr<Store>,
        hub: Addr<Hub>,
        (log, patience): (Health, Duration),
    ) -> Result<Self, Error> {
        let opened = Self {
            ledger: ask(&store, ReadTokens).await??,
            authority,
            store,
            hub,
            log,
            patience,
            cut_off: None,
            word: Word::Good,
            waiting: VecDeque::new(),
            is_busy: false,
            changed: None,
            revoked_total: 0,
            noted: BTreeMap::new(),
            warned: BTreeMap::new(),
            looked: clock::wall(),
        };
        opened.renew();
        Ok(opened)
    }

    /// Tells all connections. One whose name has become that of a key of the configuration lets
    /// nobody in: they would be one principal, with the scopes of the one or the other.
    fn renew(&self) {
        let mut tokens = self.ledger.list();
        for token in &mut tokens {
            let clashes = token.sha256.is_some() && self.authority.is_configured(&token.name);
            if clashes && token.revoked.is_none() {
                tracing::warn!(token = %token.id, name = %token.name,
                    "a key of the configuration has the same name: this one lets nobody in");
                token.revoked = Some(token.created);
            }
        }
        self.authority.renew(&tokens);
    }

    fn go_on(&mut self, ctx: &mut Context<Self>) {
        if !self.is_busy
            && let Some(changed) = self.changed.take()
        {
            return self.read_again(changed, ctx);
        }
        self.decide_waiting(ctx);
    }

    fn decide_waiting(&mut self, ctx: &mut Context<Self>) {
        while !self.is_busy
            && let Some(manage) = self.waiting.pop_front()
        {
            self.carry_out(manage, ctx);
        }
    }

    fn carry_out(
        &mut self,
        Request { command, principal, asker }: Request<TokenCommand>,
        ctx: &mut Context<Self>,
    ) {
        let at = &mut Moment { now: clock::now(), wall: clock::wall(), random: &mut clock::random };
        let heir = self.ledger.heir(&command, at.wall);
        let (changes, reply) = match self.ledger.decide(command, &principal, &self.authority, at) {
            Ok(decided) => decided,
            Err(error) => return asker.reply(Err(error)),
        };
        if changes.is_empty() {
            return asker.reply(Ok(reply.into()));
        }
        self.is_busy = true;
        let write = WriteTokens { changes: changes.clone(), durable: true };
        let store = self.store.clone();
        let written = async move {
            check_estate(&store, heir).await?;
            ask(&store, write).await.and_then(|written| written)
        };
        ctx.spawn(written.into_actor(self).then(move |written, tokens, _| {
            if written.is_ok() {
                tokens.settle(&changes, &reply);
            }
            let close = tokens.close();
            async move {
                close.await;
                asker.reply(written.map(|()| reply.into()));
            }
            .into_actor(tokens)
            .map(|(), tokens: &mut Self, ctx| {
                tokens.is_busy = false;
                tokens.go_on(ctx);
            })
        }));
    }

    /// Goes over to what the store has; nothing is decided meanwhile.
    fn read_again(&mut self, changed: oneshot::Sender<()>, ctx: &mut Context<Self>) {
        self.is_busy = true;
        let store = self.store.clone();
        let read = async move { ask(&store, ReadTokens).await.flatten() };
        ctx.spawn(read.into_actor(self).then(|read, tokens, ctx| {
            let is_read = read.is_ok();
            match read {
                Ok(kept) => {
                    tokens.ledger.replace(kept);
                    tokens.renew();
                    drop(changed);
                }
                Err(error) => {
                    tracing::warn!(%error, "what another daemon changed of the credentials can't be read");
                    tokens.changed = Some(changed);
                    ctx.run_later(READ_AGAIN, Self::go_on);
                }
            }
            tokens.close().into_actor(tokens).map(move |(), tokens: &mut Self, ctx| {
                tokens.is_busy = false;
                // What could not be read is read again a moment later.
                if is_read { tokens.go_on(ctx) } else { tokens.decide_waiting(ctx) }
            })
        }));
    }

    /// What was written down holds.
    fn settle(&mut self, changes: &[Change], reply: &TokenReply) {
        self.ledger.apply(changes);
        self.renew();
        match reply {
            TokenReply::Created(created) => {
                let Token { id, name, kind, expires, .. } = &created.token;
                let expires = expires.map(|at| at.to_rfc3339());
                tracing::info!(token = %id, %name, kind = kind.name(), expires, "a credential was given out");
                if created.closes_loopback {
                    tracing::info!("it is the first: from now on loopback requires one too");
                }
            }
            TokenReply::Revoked(token) => {
                self.revoked_total += 1;
                tracing::info!(token = %token.id, name = %token.name, "a credential is revoked");
            }
            // Its connections stay for as long as it holds.
            TokenReply::Rotated(rotated) => {
                let RotatedToken { token, old, .. } = &**rotated;
                let until = old.expires.map(Timestamp::to_rfc3339);
                tracing::info!(token = %old.id, name = %old.name, by = %token.id, until, "a credential is rotated");
            }
            TokenReply::List(_) => {}
        }
    }

    /// Closes the connections that are not upheld any more.
    fn close(&self) -> impl Future<Output = ()> + use<> {
        let (hub, whose) = (self.hub.clone(), Whose::NotUpheld(self.authority.clone()));
        async move {
            // A hub that is gone has nobody left to close.
            let _ = ask(&hub, Broadcast { notice: Notice::Revoked, whose }).await;
        }
    }

    /// Somebody was let in. Written down at most once a minute for each.
    fn note(&mut self, shown: Shown, origin: IpAddr) {
        let now = clock::now();
        let Some(change) = self.ledger.used(&shown, origin, now) else { return };
        self.ledger.apply(std::slice::from_ref(&change));
        let (written, is_due) = self.noted.entry(shown.clone()).or_insert((Timestamp::default(), true));
        *is_due = true;
        if now.since(*written) >= WRITE_EVERY {
            self.write_use(&shown, now);
        }
    }

    /// Those that end soon, the first to end first.
    fn expiring_first(&self) -> Vec<Value> {
        let mut expiring: Vec<_> = self.ledger.expiring(clock::wall()).collect();
        expiring.sort_by_key(|token| token.expires);
        let told = expiring.into_iter().take(EXPIRING_TOLD);
        let told = told.map(|token| {
            let ends = token.expires.map(Timestamp::as_millis);
            json!({ "token": &*token.id, "name": &*token.name, "expires_ms": ends })
        });
        told.collect()
    }

    fn write_use(&mut self, shown: &Shown, now: Timestamp) {
        // While a decision is written down it would be written over.
        if self.is_busy {
            return;
        }
        if let Some(change) = self.ledger.last_use(shown) {
            // Lost, it is known a minute less exactly when it was used.
            let _ = self.store.try_send(WriteTokens { changes: vec![change], durable: false });
        }
        self.noted.insert(shown.clone(), (now, false));
    }

    /// Looks whether what is known of the credentials can be relied on.
    fn look_at_the_cluster(&mut self, now: Timestamp, ctx: &mut Context<Self>) {
        let word = match (self.log.is_cut_off(), self.cut_off) {
            (false, None) => return,
            (false, Some(_)) => {
                self.cut_off = None;
                tracing::info!("cluster: credentials that were given out let in again");
                Word::Good
            }
            (true, None) => {
                self.cut_off = Some(now);
                tracing::warn!(
                    closes_in_s = self.patience.as_secs(),
                    "cut off from the cluster: credentials that were given out let nobody in, and those who came by one are \
                     closed then"
                );
                Word::Doubtful
            }
            (true, Some(since)) if now.since(since) < self.patience => Word::Doubtful,
            (true, Some(_)) => Word::Stale,
        };
        if std::mem::replace(&mut self.word, word) == word {
            return;
        }
        self.authority.rely(word);
        if word == Word::Stale {
            let whose = Whose::NotUpheld(self.authority.clone());
            let ended = self.hub.send(Broadcast { notice: Notice::CutOff, whose });
            // A hub that is gone has nobody left to close.
            ctx.spawn(ended.into_actor(self).map(|_, _, _| ()));
        }
    }

    /// What time brings about.
    fn look(&mut self, ctx: &mut Context<Self>) {
        let (now, wall) = (clock::now(), clock::wall());
        self.look_at_the_cluster(now, ctx);
        let is_due = |written: &Timestamp| now.since(*written) >= WRITE_EVERY;
        let due = self.noted.iter().filter(|(_, (written, is_used))| *is_used && is_due(written));
        for shown in due.map(|(shown, _)| shown.clone()).collect::<Vec<_>>() {
            self.write_use(&shown, now);
        }
        self.noted.retain(|_, (written, is_used)| *is_used || now.since(*written) < WRITE_EVERY);
        // Connections that know when they end have said so in their own words by then.
        let past = Timestamp::from_millis(wall.as_millis().saturating_sub(EXPIRY_GRACE_MS));
        let before = std::mem::replace(&mut self.looked, past);
        for token in self.ledger.expired(before, past) {
            tracing::info!(token = %token.id, name = %token.name, "a credential has expired");
            let whose = Whose::Token(token.id.clone());
            let ended = self.hub.send(Broadcast { notice: Notice::Revoked, whose });
            // A hub that is gone has nobody left to close.
            ctx.spawn(ended.into_actor(self).map(|_, _, _| ()));
        }
        for token in self.ledger.expiring(wall) {
            let last = self.warned.get(&token.id);
            if last.is_none_or(|last| now.since(*last) >= WARN_EVERY) {
                let expires = token.expires.map(Timestamp::to_rfc3339);
                tracing::warn!(token = %token.id, name = %token.name, expires,
                    "a credential expires soon: clawmux token rotate gives out another while it holds");
                self.warned.insert(token.id.clone(), now);
            }
        }
    }
}

/// Does something about the credentials of a home on which no daemon runs.
///
/// # Errors
/// `Conflict` where one does run; `Unavailable` in a cluster, where a daemon has to; as the store's; as
/// [`Ledger::decide`]'s.
pub async fn without_daemon(
    home: &Path,
    config: &Config,
    command: TokenCommand,
) -> Result<TokenReply, Error> {
    // Held until all of it is written down.
    let _claim = Bound::new(home, None, None, None)?;
    if config.cluster.is_some() {
        let why = "no daemon runs on this home, and in a cluster a daemon has to change credentials: start it with \
                   `clawmux serve`, or run this on another node";
        return Err(ErrorCode::Unavailable.error(why));
    }
    let authority = Authority::new(&config.auth);
    let store = Store::start(config.store.path.clone()).await?;
    let decided = decide_alone(&store, &authority, command).await;
    ask(&store, store::Stop).await.and_then(|stopped| stopped).and(decided)
}

/// What is known of the credentials of a store that no daemon has open; it is only read.
///
/// # Errors
/// As the store's.
pub(crate) async fn of_store(
    store: &Addr<Store>,
    config: &Config,
    command: TokenCommand,
) -> Result<TokenReply, Error> {
    decide_alone(store, &Authority::new(&config.auth), command).await
}

async fn decide_alone(
    store: &Addr<Store>,
    authority: &Authority,
    command: TokenCommand,
) -> Result<TokenReply, Error> {
    let ledger = ask(store, ReadTokens).await??;
    authority.renew(&ledger.list());
    let at = &mut Moment { now: clock::now(), wall: clock::wall(), random: &mut clock::random };
    let heir = ledger.heir(&command, at.wall);
    let (changes, reply) = ledger.decide(command, &Principal::socket(), authority, at)?;
    check_estate(store, heir).await?;
    if !changes.is_empty() {
        ask(store, WriteTokens { changes, durable: true }).await??;
    }
    Ok(reply)
}

/// Whether nothing is there that would come along unsaid.
async fn check_estate(store: &Addr<Store>, heir: Option<Owner>) -> Result<(), Error> {
    match heir {
        None => Ok(()),
        Some(owner) => ask(store, ReadEstate(owner.clone())).await??.check(owner.as_str()),
    }
}

impl Actor for Tokens {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        let store = self.store.clone();
        watch(&store, "tokens", self, ctx);
        self.look(ctx);
        ctx.run_interval(LOOK, Self::look);
    }
}

impl Handler<Request<TokenCommand>> for Tokens {
    type Result = ();

    fn handle(&mut self, manage: Request<TokenCommand>, ctx: &mut Self::Context) {
        if self.waiting.len() >= WAITING_MAX {
            let why = "too many credentials at once: try again";
            return manage.asker.reply(Err(ErrorCode::Unavailable.error(why)));
        }
        self.waiting.push_back(manage);
        self.go_on(ctx);
    }
}

impl Handler<TableChanged> for Tokens {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: TableChanged, ctx: &mut Self::Context) -> Self::Result {
        let (changed, read) = until_read();
        self.changed = Some(changed);
        self.go_on(ctx);
        read
    }
}

impl Handler<Reconfigure> for Tokens {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Reconfigure(auth): Reconfigure, _: &mut Self::Context) -> Self::Result {
        self.authority.configure(&auth);
        self.renew();
        Box::pin(self.close())
    }
}

impl Handler<Used> for Tokens {
    type Result = ();

    fn handle(&mut self, Used { shown, origin }: Used, _: &mut Self::Context) {
        self.note(shown, origin);
    }
}

impl Handler<Observe> for Tokens {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let (valid, known) = self.ledger.counts(clock::wall());
        Observed::leaf(
            "tokens",
            json!({
                "valid": valid,
                "known": known,
                "locked_out": self.authority.is_locked_out(clock::wall()),
                "expiring": self.ledger.expiring(clock::wall()).count(),
                "expiring_first": self.expiring_first(),
                "waiting": self.waiting.len(),
                "revoked_total": self.revoked_total,
            }),
        )
    }
}
