//! How a slot is claimed, held and handed over ([`slots`]), and how the records of one of its sessions are written
//! ([`appender`]).
//!
//! | step | where |
//! |---|---|
//! | join, live, see, claim | [`Ownership`](slots::Ownership): one for the node |
//! | fence, append, settle what is unknown | [`Appender`](appender::Appender): one for each session that is awake, and for each table that is written |
//! | wake | whoever drives both: see below |
//! | lose, hand over | `Ownership` says so, the `Appender`s come to their end |
//!
//! Whoever drives them does what the actions say, and five things more:
//!
//! - It wakes a session when it is named and its slot is held; when a slot is gained, all of its sessions in which
//!   the replica has something unfinished; **and one in which the replica applies something unfinished later**, while
//!   the slot is held and the session sleeps. An earlier owner's last record may be accepted after the slot has
//!   moved, as long as the session is not fenced; nobody else would ever finish it.
//! - It restores a session from the replica when its fence stands ([`Opened`](appender::Action::Opened)), not before.
//! - It does nothing outside, and answers nobody, before [`Written`](appender::Action::Written).
//! - It ends the sessions of a slot: with [`Close`](appender::Input::Close) while the slot is vacated, once their runs
//!   ended or that took too long, and with [`Lose`](appender::Input::Lose) where it was lost. A session is woken anew
//!   when its `Appender` has said [`Ended`](appender::Action::Ended), not before.
//! - It tells `Ownership` of a token that outdid its own ([`Superseded`](slots::Input::Superseded)).

pub mod appender;
pub mod slots;
