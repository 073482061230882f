//! The pure half of clawmux.
//!
//! Everything here is a function of its arguments: no actor, no socket, no file, no clock and no
//! source of randomness. What time it is and which random bytes to use come in as arguments, so
//! that every rule of the product can be tested without waiting and replayed exactly.
//!
//! | module | what it knows |
//! |---|---|
//! | [`ids`], [`time`], [`error`], [`limit`] | the words everything else is said in |
//! | [`command`], [`reply`], [`ask`], [`event`] | what a client can ask, what it is answered, how both are tied, what happens in a session |
//! | [`session_command`], [`session_reply`], [`transcript`], [`target`] | the same of sessions: commands, replies, what was said, which session is meant |
//! | [`daemon`] | the same of the daemon as a whole |
//! | [`announcement`] | what happens to the daemon as a whole |
//! | [`attachment`], [`run_options`], [`thinking`], [`settings`] | what a prompt brings along, how it is answered, how much is thought over it, what a session is set to |
//! | [`catalog`] | the agents and models there are |
//! | [`dialect`] | the four protocols: frames in, actions out |
//! | [`session`], [`turn`], [`context`] | one conversation: its queue, its run, what the model sees |
//! | [`fair`] | whose turn it is where many wait |
//! | [`follow`] | who follows a session, and how far each has come |
//! | [`provider`] | the wire formats of model providers |
//! | [`router`] | which agent answers whom |
//! | [`auth`] | who is let in, and with which scopes |
//! | [`strangers`] | who comes from outside, and how much is told of that |
//! | [`meter`] | budgets: reserve before a call, settle after it |
//! | [`plugin`] | manifests and grants of tools |
//! | [`health`] | how the daemon and its parts are |
//! | [`presence`] | who is connected, as operators are shown it |
//! | [`node`] | commands of nodes as tools |
//! | [`approval`] | tool calls that wait until somebody decides |
//! | [`subagent`], [`team`], [`crew`] | agents put to work for a session, alone and together; the rules they work by |
//! | [`memory`], [`mod@file`] | what is remembered and kept for an owner, apart from conversations |
//! | [`inflate`] | what strangers compressed |
//! | [`job`], [`schedule`] | what is done without anybody asking, and when it is due |
//! | [`local_file`] | files that are named by their path instead of being sent |
//! | [`messenger`] | the built-in tool that sends messages |
//! | [`lane`] | runs of several sessions that take place one at a time |
//! | [`unfinished`] | who gives way where unfinished messages take too much room |
//! | [`operator`] | what only operators ask for |
//! | [`log`] | how events are written down |
//! | [`jsonrpc`] | the lines spoken on the Unix socket |
//! | [`config`] | the configuration: raw, then validated |

#![forbid(unsafe_code)]

pub mod announcement;
pub mod answer;
pub mod approval;
pub mod ask;
pub mod attachment;
pub mod auth;
pub mod catalog;
pub mod command;
pub mod config;
pub mod context;
pub mod crew;
pub mod daemon;
pub mod dialect;
pub mod error;
pub mod event;
pub mod fair;
pub mod file;
pub mod follow;
pub mod health;
pub mod ids;
pub mod inflate;
pub mod job;
pub mod jsonrpc;
pub mod lane;
pub mod limit;
pub mod local_file;
pub mod log;
pub mod memory;
pub mod messenger;
pub mod meter;
pub mod node;
pub mod offer;
pub mod operator;
pub mod plugin;
pub mod presence;
pub mod provider;
pub mod quota;
pub mod reply;
pub mod router;
pub mod run_options;
pub mod schedule;
pub mod session;
pub mod session_command;
pub mod session_reply;
pub mod settings;
pub mod strangers;
pub mod subagent;
pub mod swappable;
pub mod target;
pub mod team;
pub mod thinking;
pub mod time;
pub mod transcript;
pub mod turn;
pub mod unfinished;
