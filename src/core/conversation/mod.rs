//! One conversation: its event log, its queue, its run, what the model sees, and who follows it.

pub mod answer;
pub mod approval;
pub mod approval_rule;
pub mod command;
pub mod context;
pub mod event;
pub mod follow;
pub mod lane;
pub mod log;
pub mod reply;
pub mod router;
pub mod session;
pub mod transcript;
pub mod turn;
