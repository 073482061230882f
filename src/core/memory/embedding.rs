//! Vectors that stand for texts, made by a model: that of a client which sends them, or one of a provider.
//!
//! Only the direction of one counts, so it is kept at length 1 and the cosine of two is their product.
//! Vectors of different lengths come from different models and are never compared.

use crate::error::limit::Limit;
use crate::error::{Detail, Error, ErrorCode};

/// The most numbers of one.
pub const DIMENSIONS_MAX: usize = 4096;
/// The largest number: no model makes such, and their squares still add up.
const MAGNITUDE_MAX: f64 = 1e18;
/// The shortest vector that has a direction: below, rounding makes it.
const LENGTH_MIN: f64 = 1e-18;
/// The bytes of one number.
const NUMBER_BYTES: usize = 4;

/// A vector of length 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding(Vec<f32>);

impl Embedding {
    /// The direction of these numbers.
    ///
    /// # Errors
    /// `InvalidRequest` naming the number that is none or too large, or where there is no direction;
    /// `TooLarge` where there are more than [`DIMENSIONS_MAX`].
    pub fn new(numbers: &[f64]) -> Result<Self, Error> {
        let invalid = |why: String| Err(ErrorCode::InvalidRequest.error(why));
        if numbers.is_empty() {
            return invalid("embedding: it has no numbers".into());
        }
        if numbers.len() > DIMENSIONS_MAX {
            let why = format!("embedding: {} numbers are more than {DIMENSIONS_MAX}", numbers.len());
            let limit = Detail::Limit { name: Limit::MemoryDimensions, limit: DIMENSIONS_MAX as u64 };
            return Err(ErrorCode::TooLarge.error(why).with(limit));
        }
        if let Some(at) = numbers.iter().position(|number| !number.is_finite()) {
            return invalid(format!("embedding[{at}]: it is no number"));
        }
        if let Some(at) = numbers.iter().position(|number| number.abs() > MAGNITUDE_MAX) {
            return invalid(format!("embedding[{at}]: it is larger than {MAGNITUDE_MAX:e}"));
        }
        let length = numbers.iter().map(|number| number * number).sum::<f64>().sqrt();
        if length < LENGTH_MIN {
            return invalid("embedding: it is zero, which points nowhere".into());
        }
        Ok(Self(numbers.iter().map(|number| (number / length) as f32).collect()))
    }

    /// How many numbers it has.
    pub fn dimensions(&self) -> usize {
        self.0.len()
    }

    /// Its numbers.
    pub fn numbers(&self) -> &[f32] {
        &self.0
    }

    /// The one that the store kept as these bytes; none where they are none.
    pub fn from_bytes(kept: &[u8]) -> Option<Self> {
        let (kept, rest) = kept.as_chunks::<NUMBER_BYTES>();
        let is_one = rest.is_empty() && (1..=DIMENSIONS_MAX).contains(&kept.len());
        is_one.then(|| Self(kept.iter().map(|number| f32::from_le_bytes(*number)).collect()))
    }

    /// The bytes that the store keeps.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// How near it is to another as that is kept, from 0 (at a right angle, or further) to 1 (the same
    /// direction); none where that has another length.
    pub fn similarity(&self, kept: &[u8]) -> Option<f64> {
        let (kept, rest) = kept.as_chunks::<NUMBER_BYTES>();
        if kept.len() != self.0.len() || !rest.is_empty() {
            return None;
        }
        let products =
            self.0.iter().zip(kept).map(|(a, b)| f64::from(*a) * f64::from(f32::from_le_bytes(*b)));
        let cosine: f64 = products.sum();
        // What was damaged on its way here is not near.
        Some(if cosine.is_nan() { 0.0 } else { cosine.clamp(0.0, 1.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_direction_is_refused_by_name() {
        let many = vec![1.0; DIMENSIONS_MAX + 1];
        for (numbers, says) in [
            (&[][..], "no numbers"),
            (&[0.0, -0.0][..], "zero"),
            (&[1e-300][..], "zero"),
            (&[1.0, f64::NAN][..], "embedding[1]: it is no number"),
            (&[f64::INFINITY][..], "embedding[0]"),
            (&[0.0, 0.0, -1e300][..], "embedding[2]: it is larger"),
            (&many[..], "4097 numbers"),
        ] {
            let error = Embedding::new(numbers).unwrap_err();
            assert!(error.message.contains(says), "{numbers:?}: {error}");
        }
        Embedding::new(&[1e18, -1e18]).unwrap();
        Embedding::new(&[1e-17]).unwrap();
    }

    #[test]
    fn lengths_do_not_count_and_other_dimensions_are_not_compared() {
        let query = Embedding::new(&[3.0, 4.0]).unwrap();
        let near = |numbers: &[f64]| query.similarity(&Embedding::new(numbers).unwrap().to_bytes());
        assert!((near(&[300.0, 400.0]).unwrap() - 1.0).abs() < 1e-6);
        assert!(near(&[4.0, -3.0]).unwrap() < 1e-6);
        assert!((near(&[1.0, 0.0]).unwrap() - 0.6).abs() < 1e-6);
        assert_eq!(near(&[-3.0, -4.0]), Some(0.0), "the opposite is no nearer than what is unrelated");
        assert_eq!((near(&[3.0, 4.0, 0.0]), query.similarity(&[0; 7])), (None, None));
        assert_eq!(query.similarity(&[0xff; 8]), Some(0.0), "numbers that are none");
    }

    proptest! {
        #[test]
        fn similarity_is_bounded_and_the_same_both_ways(
            a in proptest::collection::vec(-1e6f64..1e6, 1..40), b in proptest::collection::vec(-1e6f64..1e6, 1..40),
        ) {
            if let (Ok(one), Ok(other)) = (Embedding::new(&a), Embedding::new(&b)) {
                let there = one.similarity(&other.to_bytes());
                prop_assert_eq!(there, other.similarity(&one.to_bytes()));
                prop_assert_eq!(there.is_some(), a.len() == b.len());
                prop_assert!(there.is_none_or(|near| (0.0..=1.0).contains(&near)));
                prop_assert!(one.similarity(&one.to_bytes()).unwrap() > 0.999_99);
            }
        }
    }
}
