//! The changes of a store as records, so that several daemons with one log have the same store.
//!
//! A daemon alone changes its store and is done. In a cluster a change becomes a [`Record`] in a log that all its
//! daemons read, and each of them applies it to a store of its own, in the order of the log. Whether a change is made
//! or refused follows from the store and the record alone, never from a clock, from chance or from what else a daemon
//! knows: so all come to the same end, and the [`digest`] over all records says that all had the same ones.
//!
//! | module | what it knows |
//! |---|---|
//! | [`mod@write`] | the changes that all daemons make |
//! | [`record`] | one of them as bytes, and back |
//! | [`blob`] | what stands for a record that is too large for the log |
//! | [`spoken`] | text that waits for the end of its step |
//! | [`digest`] | the chain over all records |
//!
//! Text of a step that is under way is in no record: a step's text comes with the step's end, in one piece.
//!
//! Deliberately absent: who may write what (that is the cluster's), and how a change is applied (the store's).

pub mod blob;
pub mod digest;
pub mod record;
pub mod spoken;
#[cfg(test)]
mod tests;
pub(crate) mod value;
mod values;
pub mod write;

pub use blob::Blob;
pub use record::Record;
pub use write::{Appended, Guard, Subject, Write};
