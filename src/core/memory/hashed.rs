//! Vectors made here, without a model: what is written alike is near.
//!
//! Every word is cut into pieces of three characters, its ends marked, and each piece and the word itself are
//! thrown by their digest into one of [`DIMENSIONS`] places, with a sign. So `backups` is near `backup` and a
//! word with a typo near the word; what means the same in other words is not, which takes a model's vectors.
//! Words that say nothing by themselves are left out, or all questions would be alike.
//!
//! The digest, the pieces and the number of places are part of the store's format: who changes them has to
//! make anew what is stored.

use super::text;

/// How many numbers one has.
pub const DIMENSIONS: usize = 256;

/// How many characters a piece has.
const PIECE_CHARS: usize = 3;

/// The largest number: lengths are this.
const SCALE: f32 = 127.0;

/// A vector of about the length [`SCALE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashed(Vec<i8>);

impl Hashed {
    /// That of a text; none where it has no words.
    pub fn of(said: &str) -> Option<Self> {
        let mut sums = [0f32; DIMENSIONS];
        text::each_content_word(said, |word| {
            throw(&mut sums, word);
            let marked: Vec<char> = std::iter::once('\u{2}')
                .chain(word.iter().copied())
                .chain(std::iter::once('\u{3}'))
                .collect();
            // Of two characters the marked word is four: two pieces.
            marked.windows(PIECE_CHARS).for_each(|piece| throw(&mut sums, piece));
        });
        let length = sums.iter().map(|sum| sum * sum).sum::<f32>().sqrt();
        (length > 0.0).then(|| {
            #[expect(clippy::cast_possible_truncation, reason = "within the scale")]
            let scaled = sums.iter().map(|sum| (sum / length * SCALE).round() as i8);
            Self(scaled.collect())
        })
    }

    /// The bytes that the store keeps.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().map(|number| number.cast_unsigned()).collect()
    }

    /// How near it is to one as that is kept, from 0 to 1; 0 where that is none.
    pub fn similarity(&self, kept: &[u8]) -> f32 {
        if kept.len() != DIMENSIONS {
            return 0.0;
        }
        let products = self.0.iter().zip(kept).map(|(a, b)| i32::from(*a) * i32::from(b.cast_signed()));
        let product: i32 = products.sum();
        #[expect(clippy::cast_precision_loss, reason = "far below what has no exact neighbour")]
        let cosine = product as f32 / (SCALE * SCALE);
        cosine.clamp(0.0, 1.0)
    }
}

fn throw(sums: &mut [f32; DIMENSIONS], piece: &[char]) {
    let mixed = mixed(text::digest(piece));
    let place = mixed as usize % DIMENSIONS;
    sums[place] += if mixed >> 63 == 0 { 1.0 } else { -1.0 };
}

/// A digest of which each bit hangs on all others: those of short texts differ in few (the end of MurmurHash3).
fn mixed(mut digest: u64) -> u64 {
    digest = (digest ^ digest >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    digest = (digest ^ digest >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    digest ^ digest >> 33
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn near(one: &str, other: &str) -> f32 {
        Hashed::of(one).unwrap().similarity(&Hashed::of(other).unwrap().to_bytes())
    }

    #[test]
    fn what_is_written_alike_is_nearer() {
        assert!(near("the backup server", "a server for BACKUPS") > 0.6);
        assert!(near("Lisbon", "lisbonne") > 0.4 && near("Lisbon", "lisbonne") > near("Lisbon", "Porto"));
        assert!(near("where do I live", "I am where you are") < 0.99, "what says nothing does not count");
        assert!(near("咖啡很好", "我喜欢咖啡") > near("咖啡很好", "我喜欢喝茶"));
        assert!(near("walnuts", "coffee after lunch") < 0.3);
        assert_eq!((Hashed::of(""), Hashed::of(" \n")), (None, None));
        assert_eq!(Hashed::of("tea").unwrap().similarity(&[1; 8]), 0.0);
    }

    #[test]
    fn places_are_part_of_the_format() {
        let bytes = Hashed::of("tea").unwrap().to_bytes();
        let set: Vec<(usize, u8)> =
            bytes.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect();
        // The word and its three pieces, two of them in one place.
        assert_eq!((bytes.len(), set), (DIMENSIONS, vec![(97, 104), (131, 52), (232, 204)]));
    }

    proptest! {
        #[test]
        fn similarity_is_bounded_and_that_to_itself_is_one(a in "\\PC{1,40}", b in "\\PC{1,40}") {
            if let (Some(one), Some(other)) = (Hashed::of(&a), Hashed::of(&b)) {
                let there = one.similarity(&other.to_bytes());
                prop_assert_eq!(there, other.similarity(&one.to_bytes()));
                prop_assert!((0.0..=1.0).contains(&there));
                prop_assert!(one.similarity(&one.to_bytes()) > 0.95);
            }
        }
    }
}
