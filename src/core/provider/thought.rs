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
    /// The thought, encrypted besides what of it may be read.
    Encrypted {
        /// Its provider's name for it.
        id: String,
        /// What only its provider can read.
        content: String,
    },
    /// A signature over a tool call that was thought of.
    OfCall {
        /// Which of the answer's calls, from 0.
        nth: usize,
        /// The signature.
        signature: String,
    },
}

impl SignatureData {
    /// How many bytes of it go back to the provider.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Bare => 0,
            Self::Signature(proof) | Self::Redacted(proof) | Self::OfCall { signature: proof, .. } => {
                proof.len()
            }
            Self::Encrypted { id, content } => id.len() + content.len(),
        }
    }
}

/// The end of a thought, to which a provider wants something back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThoughtSignature {
    /// How many bytes of the step's thoughts it covers: those after the seal before it.
    pub thought_bytes: usize,
    /// How many bytes of the step's text were said before its last piece; where it has no text, before its seal.
    pub text_bytes: usize,
    /// What goes back with it.
    pub proof: SignatureData,
}

impl ThoughtSignature {
    /// How many bytes go back to the provider with the thought.
    pub fn bytes(&self) -> usize {
        self.proof.bytes()
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
