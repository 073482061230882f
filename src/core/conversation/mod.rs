//! One conversation: its event log, its queue, its run, what the model sees, and who follows it.

pub mod answer;
pub mod approval;
pub mod approval_rule;
pub mod command;
pub mod compaction;
pub mod context;
pub mod event;
pub mod follow;
pub mod lane;
pub mod log;
pub mod notes;
pub mod order;
pub mod outbox;
pub mod reply;
pub mod router;
pub mod session;
pub mod system_prompt;
pub mod transcript;
pub mod turn;
pub mod window;
