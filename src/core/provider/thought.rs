//! What a model thought, and what its provider wants back with it.

/// What a provider wants back with a thought, so that the model can go on from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureData {
    /// Nothing but the thought itself.
    Bare,
    /// A signature over the thought.
    Signature(String),
    /// The thought, encrypted: it has no text.
    Redacted(String),
}

/// The end of a thought, to which a provider wants something back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThoughtSignature {
    /// How many bytes of the step's thoughts it covers: those after the seal before it.
    pub thought_bytes: usize,
    /// How many bytes of the step's text were said before it.
    pub text_bytes: usize,
    /// What goes back with it.
    pub proof: SignatureData,
}

impl ThoughtSignature {
    /// How many bytes go back to the provider with the thought.
    pub fn bytes(&self) -> usize {
        match &self.proof {
            SignatureData::Bare => 0,
            SignatureData::Signature(proof) | SignatureData::Redacted(proof) => proof.len(),
        }
    }
}

/// A thought of a model as it goes back to its provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thought {
    /// What was thought; may be empty.
    pub text: String,
    /// Before which byte of the message's text it ended.
    pub at: usize,
    /// What its provider wants back with it.
    pub proof: SignatureData,
}
