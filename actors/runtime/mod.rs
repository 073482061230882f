//! What serves every actor: the clock, requests and their answers, supervision, figures, the daemon's log.

pub mod arbiters;
pub(crate) mod ask;
pub(crate) mod awaited;
pub mod clock;
pub mod daemon_log;
pub mod deliver;
pub mod dispatch;
pub mod lane;
pub mod lead;
pub(crate) mod line;
pub mod log_filter;
pub mod meters;
pub mod observe;
pub mod say;
pub mod supervision;
