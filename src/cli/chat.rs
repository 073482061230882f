//! The arguments of `clawmux chat`.

use std::path::PathBuf;

use clap::Args;

/// `chat`
#[derive(Args, Debug)]
pub(crate) struct Chat {
    /// A single prompt: its answer goes to stdout, and the exit status says how it ended. Several words are
    /// joined by spaces; piped input follows after a blank line, or stands where `-` is
    pub(crate) message: Vec<String>,
    /// Session: a NAME, short for main:cli:$USER:NAME; a KEY, AGENT:CHANNEL:ACCOUNT:PEER, or a beginning
    /// that only one has; for operators OWNER/KEY [default: main]
    #[arg(long, value_name = "NAME|KEY")]
    pub(crate) session: Option<String>,
    /// Agent of the session NAME [default: main]
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// Send this file with the prompt (an image, or text in UTF-8); may be repeated
    #[arg(long)]
    pub(crate) file: Vec<PathBuf>,
    /// Write the turn as JSON Lines, one event a line
    ///
    /// Each line is an object whose `event` says what it is:
    ///   accepted     session, run: the prompt is stored
    ///   thought      text
    ///   text         text: a piece of the answer
    ///   restart      the text since the last tool_result is void and comes anew
    ///   tool_use     name, input; approval: the ID to approve or deny, where the call waits for that
    ///   approval     approval, name, decision (approved, denied, timed_out, withdrawn), by
    ///   tool_result  content, is_error
    ///   notice       kind (waiting, retrying, fallback, incomplete, reduced, compacted, budget), message
    ///   done         outcome (completed, aborted, failed), error, elapsed_ms, input_tokens, output_tokens
    ///
    /// Fields that do not apply are left out. Skip events and fields you do not know.
    #[arg(long, verbatim_doc_comment)]
    pub(crate) json: bool,
    /// WebSocket of a daemon, such as ws://127.0.0.1:18789/ws [default: the daemon of the home]
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// File that holds the token for --url [default: the token in $CLAWMUX_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}
