//! What is seen to before a run asks its model for the first time: that the conversation fits into its context, and
//! what is remembered that may bear on the prompt. Neither keeps a run from going on: each has a deadline, and
//! what fails is done without, or by rules.

use std::time::Duration;

use actix::prelude::*;
use clawmux_core::conversation::compaction::{Compaction, Question};
use clawmux_core::conversation::notes::{MEMORY_BYTES_MAX, memory_block};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::RunId;
use clawmux_core::memory::{self, MemoryCommand, MemoryReply};
use clawmux_core::prompt::thinking::Thinking;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::{ChatMessage, ChatRequest, ProviderKind, output_tokens};
use clawmux_core::request::reply::Reply;
use futures::future::{LocalBoxFuture, OptionFuture, join};

use super::Session;
use super::work::Doing;
use crate::provider_supervisor::Chat;
use crate::runtime::clock;

/// How long the file of the soul may take to be looked at; then it is as it was.
const SOUL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a model may take to sum up; then it is done by rules.
const SUMMARY_TIMEOUT: Duration = Duration::from_secs(30);

/// How much of a summary is read for each token it may have, in bytes.
const SUMMARY_TOKEN_BYTES_MAX: usize = 16;

/// How many memories are looked for, and how much of the context they may take, in percent.
const RECALLED_MAX: usize = 8;
const RECALLED_PERCENT: usize = 10;

/// How much of a prompt is searched with, in bytes.
const SEARCHED_BYTES_MAX: usize = 4096;

/// The memories that were found, the best first.
type Memories = Vec<String>;

impl Session {
    /// Sees to what the model is shown, then has it asked.
    pub(super) fn prepare(&mut self, run: RunId, ctx: &mut Context<Self>) {
        let (soul, of) = (self.profile.soul.clone(), run.clone());
        let looked = tokio::time::timeout(SOUL_TIMEOUT, tokio::task::spawn_blocking(move || soul.look()));
        let looked = looked.into_actor(self).map(move |looked, session, ctx| {
            if looked.is_err() {
                tracing::warn!(agent = %session.profile.id, "the file of the soul was not read in time");
            }
            session.doing = Doing::Nothing;
            session.soul = session.profile.soul.text();
            session.make_room(of, ctx);
        });
        self.doing = Doing::Preparing { run, future: ctx.spawn(looked) };
    }

    /// Makes room in the conversation, and looks for what is remembered.
    fn make_room(&mut self, run: RunId, ctx: &mut Context<Self>) {
        self.conversation.set_context_tokens(self.context_tokens());
        let compaction = self.conversation.compaction(&self.system_prompt());
        let made = compaction.as_ref().and_then(|compaction| self.summary(&run, compaction));
        let found = self.recall(&run);
        if made.is_none() && found.is_none() {
            return self.finish_preparing(run, compaction, None, Vec::new(), ctx);
        }
        let both = join(OptionFuture::from(made), OptionFuture::from(found));
        let of = run.clone();
        let seen_to = both.into_actor(self).map(move |(made, found), session, ctx| {
            session.finish_preparing(of, compaction, made.flatten(), found.unwrap_or_default(), ctx);
        });
        self.doing = Doing::Preparing { run, future: ctx.spawn(seen_to) };
    }

    /// Writes down what came of it, and goes on.
    fn finish_preparing(
        &mut self,
        run: RunId,
        compaction: Option<Compaction>,
        made: Option<String>,
        found: Memories,
        ctx: &mut Context<Self>,
    ) {
        self.doing = Doing::Nothing;
        let now = clock::now();
        if let Some(compaction) = compaction {
            let summary = compaction.summary(made.as_deref());
            let (left_out, by_model) = (compaction.left_out(), made.is_some());
            tracing::debug!(session = %self.conversation.key(), left_out, by_model, "older turns are summed up");
            self.conversation.compacted(now, &run, &compaction, summary);
        }
        let bytes_max = self.conversation.context_tokens().saturating_mul(4) / 100 * RECALLED_PERCENT;
        let memories = found.iter().map(String::as_str);
        let notes = memory_block(memories, &self.conversation.noted(), bytes_max);
        self.conversation.recalled(now, &run, notes);
        self.prepared = Some(run);
        self.proceed(ctx);
    }

    /// How many tokens the model that is asked first may see: what is configured, as far as its window is known to
    /// have room for that and an answer.
    fn context_tokens(&self) -> usize {
        let configured = self.profile.context_tokens;
        let Some(model) = self.first_model() else { return configured };
        let wanted = output_tokens(self.max_tokens(), self.conversation.thinking().unwrap_or(Thinking::Off));
        self.agent_configs.catalog.facts(&model).context_tokens(configured, wanted)
    }

    /// Has a model sum up what is left out; none where that is to be done by rules.
    fn summary(
        &self,
        run: &RunId,
        compaction: &Compaction,
    ) -> Option<LocalBoxFuture<'static, Option<String>>> {
        let model = self.first_model()?;
        if !self.profile.summaries || self.is_offline() {
            return None;
        }
        let question = compaction.question()?;
        let bytes_max = question.max_tokens as usize * SUMMARY_TOKEN_BYTES_MAX;
        let chat = self.summing_up(run, model, question);
        let (providers, session) = (self.deps.providers.clone(), self.conversation.key().clone());
        Some(Box::pin(async move {
            let said = async {
                let mut deltas = providers.send(chat).await.map_err(|_| gone())??;
                // Longer than that no summary may be.
                Ok(deltas.text(bytes_max).await?.0)
            };
            let failed = match tokio::time::timeout(SUMMARY_TIMEOUT, said).await {
                Ok(Ok(said)) => return Some(said),
                Ok(Err(error)) => error,
                Err(_) => ErrorCode::Timeout.error(format!("no summary within {SUMMARY_TIMEOUT:?}")),
            };
            // Quoted: it may repeat what a provider said.
            tracing::warn!(%session, error = ?failed.message, "older turns are summed up by rules");
            None
        }))
    }

    /// Whether the model that is asked first is the built-in one, which can't sum up.
    pub(super) fn is_offline(&self) -> bool {
        let access =
            self.first_model().and_then(|model| self.agent_configs.catalog.access.get(&model.provider));
        access.is_none_or(|access| access.kind == ProviderKind::Offline)
    }

    /// What a model is asked to sum up with; that model alone, for others may be none that can.
    fn summing_up(&self, run: &RunId, model: ModelRef, question: Question) -> Chat {
        let Question { system, prompt, max_tokens } = question;
        Chat {
            session: self.conversation.key().clone(),
            run: run.clone(),
            agent: self.profile.id.clone(),
            models: vec![model],
            model: None,
            request: ChatRequest {
                model: String::new(),
                system,
                messages: vec![ChatMessage::user(prompt)],
                tools: Vec::new(),
                max_tokens,
                thinking: Thinking::Off,
                cache_marks: false,
            },
            account: self.account.clone(),
        }
    }

    /// Looks for what is remembered for the owner of the session that may bear on the prompt; none where it is not
    /// to be done.
    fn recall(&self, run: &RunId) -> Option<LocalBoxFuture<'static, Memories>> {
        let within = self.profile.recall.filter(|_| self.conversation.may_recall(run))?;
        let prompt = self.conversation.prompt()?;
        let searched = prompt[..prompt.floor_char_boundary(SEARCHED_BYTES_MAX)].to_owned();
        let question = memory::Question::about(&searched, RECALLED_MAX).ok()?;
        let command = MemoryCommand::Query(memory::Query { question, tier: None, session: None });
        let (asked, session) = (self.ask_memory(command), self.conversation.key().clone());
        Some(Box::pin(async move {
            let failed = match tokio::time::timeout(within, asked).await {
                Ok(Ok(Reply::Memory(MemoryReply::Found(found)))) => {
                    return found.results.into_iter().map(|memory| beginning(memory.content)).collect();
                }
                Ok(Ok(_)) => ErrorCode::Internal.error("an answer to another question"),
                Ok(Err(error)) => error,
                Err(_) => ErrorCode::Timeout.error(format!("nothing found within {within:?}")),
            };
            if failed.is_retryable() {
                // Everybody's trouble, which the log tells once.
                tracing::debug!(%session, error = %failed, "a prompt is answered without what is remembered");
            } else {
                tracing::warn!(%session, error = %failed, "a prompt is answered without what is remembered");
            }
            Memories::new()
        }))
    }
}

/// What of a memory is shown at most.
fn beginning(mut content: String) -> String {
    content.truncate(content.floor_char_boundary(MEMORY_BYTES_MAX));
    content
}

fn gone() -> Error {
    ErrorCode::Unavailable.error("the answer was cut off")
}
