//! Vectors that a provider makes of texts, in OpenAI's format: the request to `/embeddings`, and its answer.
//!
//! Source: the embeddings API reference. Tolerated of imitators: vectors without an index, which are taken in their
//! order, and no usage. Not tolerated: another number of vectors than there were texts, and vectors of different
//! lengths, since it could not be told which is whose, or what one may be compared with.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::usage::Usage;
use crate::error::{Error, ErrorCode};
use crate::memory::Embedding;

/// The most texts of one request.
pub const TEXTS_MAX: usize = 32;
/// The most bytes of one text: no more tokens than models take that were made for texts of some length.
pub const TEXT_BYTES_MAX: usize = 8000;
/// The largest answer that is read, in bytes: twice what the most and longest vectors take.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    input: &'a [String],
    encoding_format: &'static str,
}

/// The body of a request for the vectors of these texts.
pub fn body(model: &str, texts: &[String]) -> Vec<u8> {
    let body = Body { model, input: texts, encoding_format: "float" };
    // Strings alone can't fail.
    serde_json::to_vec(&body).unwrap_or_default()
}

/// What of a text goes out.
pub fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// The vectors of texts, in their order, all of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedded {
    /// One for each text.
    pub vectors: Vec<Embedding>,
    /// What the provider counted; none where it does not say.
    pub usage: Option<Usage>,
}

/// Why an answer can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is none of this format.
    OtherFormat,
    /// It has so many vectors for so many texts.
    Count(usize, usize),
    /// It has two vectors for this text, or one for a text that there is not.
    Index(usize),
    /// Its vectors are of different lengths.
    Lengths,
    /// The vector of this text is none, in these words.
    Vector(usize, String),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherFormat => f.write_str("it is something else than vectors"),
            Self::Count(found, wanted) => write!(f, "it has {found} vectors for {wanted} texts"),
            Self::Index(at) => write!(f, "its index {at} is of no text, or stands twice"),
            Self::Lengths => f.write_str("its vectors are of different lengths"),
            Self::Vector(at, why) => write!(f, "the vector of text {at} is none: {why}"),
        }
    }
}

impl Unreadable {
    /// As an error of this provider.
    pub fn of(&self, provider: &str) -> Error {
        ErrorCode::Provider.error(format!("{provider}: its answer to a request for vectors: {self}"))
    }
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Datum>,
    usage: Option<Counted>,
}

#[derive(Deserialize)]
struct Datum {
    index: Option<usize>,
    embedding: Vec<f64>,
}

#[derive(Deserialize)]
struct Counted {
    prompt_tokens: Option<u64>,
    total_tokens: Option<u64>,
}

/// Reads the answer to a request for the vectors of so many texts.
///
/// # Errors
/// Why it can't be read.
pub fn read(answer: &[u8], texts: usize) -> Result<Embedded, Unreadable> {
    if answer.len() > ANSWER_BYTES_MAX {
        return Err(Unreadable::OtherFormat);
    }
    let Answer { data, usage } = serde_json::from_slice(answer).map_err(|_| Unreadable::OtherFormat)?;
    if data.len() != texts {
        return Err(Unreadable::Count(data.len(), texts));
    }
    let mut vectors: Vec<Option<Embedding>> = vec![None; texts];
    for (at, Datum { index, embedding }) in data.into_iter().enumerate() {
        let at = index.unwrap_or(at);
        let place = vectors.get_mut(at).filter(|place| place.is_none()).ok_or(Unreadable::Index(at))?;
        let vector = Embedding::new(&embedding).map_err(|error| Unreadable::Vector(at, error.message))?;
        *place = Some(vector);
    }
    // As many as there are places, and none of them twice.
    let vectors: Vec<Embedding> = vectors.into_iter().flatten().collect();
    let lengths = |pair: &[Embedding]| pair[0].dimensions() == pair[1].dimensions();
    if !vectors.windows(2).all(lengths) {
        return Err(Unreadable::Lengths);
    }
    let tokens = usage.and_then(|counted| counted.prompt_tokens.or(counted.total_tokens));
    Ok(Embedded { vectors, usage: tokens.map(|tokens| Usage::new(tokens, 0)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn answer(answer: &Value, texts: usize) -> Result<Embedded, Unreadable> {
        read(answer.to_string().as_bytes(), texts)
    }

    #[test]
    fn a_request_is_as_the_reference_has_it() {
        let sent: Value = serde_json::from_slice(&body("m", &["a".into(), "\"".into()])).unwrap();
        assert_eq!(sent, json!({ "model": "m", "input": ["a", "\""], "encoding_format": "float" }));
        let long = "ä".repeat(TEXT_BYTES_MAX);
        assert_eq!((beginning(&long).len(), beginning("a")), (TEXT_BYTES_MAX, "a"));
    }

    #[test]
    fn vectors_are_put_in_the_order_of_their_texts() {
        let said = json!({
            "object": "list", "model": "m", "usage": { "prompt_tokens": 8, "total_tokens": 8 },
            "data": [{ "object": "embedding", "index": 1, "embedding": [0.0, 2.0] },
                     { "object": "embedding", "index": 0, "embedding": [3, 4e0] }],
        });
        let read = answer(&said, 2).unwrap();
        assert_eq!(read.vectors[0], Embedding::new(&[3.0, 4.0]).unwrap());
        assert_eq!(read.vectors[1].numbers(), [0.0, 1.0]);
        assert_eq!(read.usage, Some(Usage::new(8, 0)));
        let bare = json!({ "data": [{ "embedding": [1] }, { "embedding": [-1] }] });
        let read = answer(&bare, 2).unwrap();
        assert_eq!((read.vectors[1].numbers(), read.usage), (&[-1.0][..], None));
    }

    #[test]
    fn what_is_none_is_refused_by_its_kind() {
        let one = |embedding: Value| json!({ "data": [{ "index": 0, "embedding": embedding }] });
        assert_eq!(answer(&json!({ "error": "no" }), 1), Err(Unreadable::OtherFormat));
        assert_eq!(answer(&one(json!("AAAA")), 1), Err(Unreadable::OtherFormat));
        assert_eq!(answer(&one(json!([1])), 2), Err(Unreadable::Count(1, 2)));
        let twice = json!({ "data": [{ "index": 0, "embedding": [1] }, { "index": 0, "embedding": [1] }] });
        assert_eq!(answer(&twice, 2), Err(Unreadable::Index(0)));
        let beyond = json!({ "data": [{ "index": 7, "embedding": [1] }] });
        assert_eq!(answer(&beyond, 1), Err(Unreadable::Index(7)));
        let uneven = json!({ "data": [{ "embedding": [1] }, { "embedding": [1, 1] }] });
        assert_eq!(answer(&uneven, 2), Err(Unreadable::Lengths));
        for none in [json!([]), json!([0, 0]), json!(vec![1; 5000])] {
            assert!(matches!(answer(&one(none), 1), Err(Unreadable::Vector(0, _))));
        }
        let long = vec![b' '; ANSWER_BYTES_MAX + 1];
        assert_eq!(read(&long, 1), Err(Unreadable::OtherFormat));
        assert!(Unreadable::Lengths.of("up").message.starts_with("up: its answer"));
    }

    proptest! {
        /// Whatever comes back, it is read or refused; what is read has a vector for each text.
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300), texts in 0usize..4) {
            if let Ok(embedded) = read(&bytes, texts) {
                prop_assert_eq!(embedded.vectors.len(), texts);
            }
        }

        #[test]
        fn nor_does_what_is_almost_an_answer(
            data in proptest::collection::vec(
                (proptest::option::of(0usize..4), proptest::collection::vec(any::<f32>(), 0..4)), 0..4),
            cut in 0usize..200, texts in 0usize..4,
        ) {
            let data: Vec<Value> =
                data.iter().map(|(index, numbers)| json!({ "index": index, "embedding": numbers })).collect();
            let said = json!({ "data": data, "usage": { "prompt_tokens": 3 } }).to_string();
            for said in [&said[..], &said[..said.len().saturating_sub(cut)]] {
                if let Ok(embedded) = read(said.as_bytes(), texts) {
                    prop_assert_eq!(embedded.vectors.len(), texts);
                    prop_assert!(embedded.vectors.windows(2).all(|two| two[0].dimensions() == two[1].dimensions()));
                }
            }
        }
    }
}
