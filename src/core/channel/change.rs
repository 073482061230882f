//! What is to be written down of a channel: what came in, what is to be said, and who is let in.

/// A change of what is kept of one channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelChange {
    /// A platform said this.
    Receive(String),
    /// The adapter has asked its platform up to here.
    Advance(String),
    /// The adapter made these messages of what a platform said, each with its id there. Those that are known are
    /// left out.
    Parsed(i64, Vec<(Option<String>, String)>),
    /// A message, or what no adapter understands, is done with.
    Taken(i64),
    /// Something is to be said.
    Say(Saying),
    /// The same, once: nothing where it is known by this already, among the ids of messages.
    SayOnce(String, Saying),
    /// Something is known by this from now on, among the ids of messages.
    Remember(String),
    /// Nothing is known by this any more.
    Unremember(String),
    /// An adapter made these requests, as JSON, of an answer.
    Formatted(i64, String),
    /// How far an answer is.
    Send(i64, SendState),
    /// An answer is done with.
    Sent(i64),
    /// Somebody is let in.
    LetIn(String),
    /// Somebody is let in no more.
    ShutOut(String),
    /// Somebody was told a code.
    Tell(String, String),
    /// A code is no longer good.
    Forget(String),
}

/// Something that is to be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saying {
    /// The conversation it is for.
    pub conversation: String,
    /// Where it goes, in the channel's words.
    pub address: String,
    /// What is said.
    pub words: Words,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Words {
    /// This, as [`ChannelAnswer`](crate::conversation::outbox::ChannelAnswer) is kept.
    Answer(String),
    /// What an adapter has made of it, as JSON.
    Requests(String),
}

/// How far an answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendState {
    /// So many of its requests were carried out; the next one is to be sent.
    Waits(usize),
    /// The next one is being sent.
    Sending,
    /// The next one was not carried out, and never will be.
    Failed(String),
    /// Whether it was, nobody knows.
    Unknown(String),
}
