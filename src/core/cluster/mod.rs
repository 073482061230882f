//! Several daemons over one log: who should own a session, and who did. Everything here is a function of what was
//! heard, read and answered; nothing reads a clock or speaks to a server.
//!
//! Two mechanisms that must not be confused: **leases decide who should; compare-and-set decides who did.** What a
//! node believes about others ([`membership`]) may be wrong at any time, and its clock too: then slots move for
//! nothing and clients wait, but no record is lost, doubled or written by somebody who was outdone.
//!
//! | module | what it knows |
//! |---|---|
//! | [`node`] | names of nodes, their incarnations, what they say of themselves |
//! | [`slot`] | which slot and which subject a session has, and which node a slot should have |
//! | [`stamp`] | what every record carries, and which of them count |
//! | [`membership`] | who is alive, by what was heard |
//! | [`peer`] | what nodes ask each other about sessions, and tell |
//! | [`ownership`] | how a slot is claimed, held and handed over, and how its sessions' records are written |
//! | [`base`] | with what a log begins, and whether a store may follow it |
//!
//! Deliberately absent: what records say, the log's format, and the purge of a deleted session's subject, after
//! which a session's [`Appender`](ownership::appender::Appender) has to be made anew.

pub mod base;
pub mod membership;
pub mod node;
pub mod ownership;
pub mod peer;
pub mod slot;
pub mod stamp;
