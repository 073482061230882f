//! What is not as it must be: whoever finds it says so here, and the test ends with it.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_local};

/// What was found so far.
#[derive(Default)]
pub struct Findings {
    wrong: RefCell<Vec<String>>,
    one_more: Notify,
}

impl Findings {
    /// Something is as it must not be.
    pub fn wrong(&self, why: String) {
        self.wrong.borrow_mut().push(why);
        self.one_more.notify_one();
    }

    /// Has somebody act on the side: should he fail, it is a finding.
    pub fn watch<T: 'static>(
        self: &Rc<Self>,
        who: String,
        act: impl Future<Output = T> + 'static,
    ) -> JoinHandle<Option<T>> {
        let findings = self.clone();
        spawn_local(async move {
            let acted = spawn_local(act).await;
            acted.inspect_err(|error| findings.wrong(format!("{who}: {error}"))).ok()
        })
    }

    /// What `future` gives.
    ///
    /// # Errors
    /// The first thing that is found before that.
    pub async fn unless_wrong<T>(&self, future: impl Future<Output = T>) -> Result<T, String> {
        let found = async {
            loop {
                if let Some(why) = self.wrong.borrow().first() {
                    return why.clone();
                }
                self.one_more.notified().await;
            }
        };
        tokio::select! {
            biased;
            why = found => Err(why),
            output = future => Ok(output),
        }
    }
}
