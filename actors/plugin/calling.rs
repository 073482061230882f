//! A call of a tool under way, as who asked for it holds it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use clawmux_core::ids::{CallId, PluginName};
use clawmux_core::tools::audit::CallUsage;
use clawmux_core::tools::call::ToolResult;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Answer;

/// How long a call may wait for a thread before it is given up.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// What comes of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Its turn has come: the guest runs.
    Begun,
    /// It is over, and what it used.
    Returned(ToolResult, CallUsage),
}

/// A call under way: its progress and its result. Dropped, it is called off: what did not begin never will,
/// and a guest that runs is ended.
#[derive(Debug)]
pub struct Calling {
    plugin: PluginName,
    call: CallId,
    /// None once its turn has come.
    begun: Option<oneshot::Receiver<()>>,
    /// None once it is over.
    answer: Option<oneshot::Receiver<Answer>>,
    /// There as long as somebody waits for the call.
    _wanted: Arc<()>,
}

/// The end of a call that makes it.
#[derive(Debug)]
pub(super) struct Called {
    /// Tells that it begins. Where that fails it was given up, and must not.
    pub(super) begun: oneshot::Sender<()>,
    /// Closed where the call was called off.
    pub(super) reply: oneshot::Sender<Answer>,
    /// Gone where the call was called off.
    pub(super) wanted: Weak<()>,
}

impl Calling {
    /// Both ends of a call that waits for its turn.
    pub(super) fn new(plugin: PluginName, call: CallId) -> (Self, Called) {
        let (begin, begun) = oneshot::channel();
        let (reply, answer) = oneshot::channel();
        let wanted = Arc::new(());
        let called = Called { begun: begin, reply, wanted: Arc::downgrade(&wanted) };
        (Self { plugin, call, begun: Some(begun), answer: Some(answer), _wanted: wanted }, called)
    }

    /// A call that is never made, and why.
    pub(crate) fn refused(plugin: PluginName, call: CallId, why: impl Into<String>) -> Self {
        let (calling, Called { reply, .. }) = Self::new(plugin, call);
        // The other end is here.
        let _ = reply.send(Answer::error(why));
        calling
    }

    /// What comes next of it; none after its result. A call that waits longer than [`WAIT_MAX`] for its turn
    /// is given up.
    pub async fn next(&mut self) -> Option<Progress> {
        if let Some(mut begun) = self.begun.take() {
            match timeout(WAIT_MAX, &mut begun).await {
                Ok(Ok(())) => return Some(Progress::Begun),
                // It never begins: its answer says why.
                Ok(Err(_)) => {}
                Err(_) => {
                    begun.close();
                    // Just now; so its own time limit ends it.
                    if begun.try_recv().is_ok() {
                        return Some(Progress::Begun);
                    }
                    self.answer = None;
                    let (plugin, limit) = (&self.plugin, WAIT_MAX.as_millis());
                    let busy = format!("plugin {plugin} is busy: no room to run within {limit} ms");
                    let (result, usage) = self.outcome(Answer::error(busy));
                    return Some(Progress::Returned(result, usage));
                }
            }
        }
        let answer = self.answer.take()?.await;
        let answer = answer.unwrap_or_else(|_| Answer::crashed(&self.plugin));
        let (result, usage) = self.outcome(answer);
        Some(Progress::Returned(result, usage))
    }

    /// Waits for its result, and what it used: whatever happens, there is one.
    pub async fn result(mut self) -> (ToolResult, CallUsage) {
        loop {
            match self.next().await {
                Some(Progress::Begun) => {}
                Some(Progress::Returned(result, usage)) => return (result, usage),
                // Somebody has taken it before.
                None => return self.outcome(Answer::crashed(&self.plugin)),
            }
        }
    }

    fn outcome(&self, Answer { content, is_error, usage }: Answer) -> (ToolResult, CallUsage) {
        (ToolResult { call: self.call.clone(), content, is_error }, usage)
    }
}
