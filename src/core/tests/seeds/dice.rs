//! The only source of chance: a small generator (splitmix64), so that a seed is a whole history.

/// Numbers that follow from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Neighbouring seeds have nothing in common.
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Self(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ 0xA076_1D64_78BD_642F);
        dice.roll();
        dice
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 to `n` - 1.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (((self.roll() >> 32) * n as u64) >> 32) as usize
    }

    /// Once in `n` times; never where `n` is 0.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        n > 0 && self.below(n) == 0
    }

    /// One of these, each as often as its weight says; some weight must be above 0.
    pub(crate) fn weighed<T: Copy>(&mut self, of: &[(T, usize)]) -> T {
        let total = of.iter().map(|(_, weight)| weight).sum();
        let mut at = self.below(total);
        for (what, weight) in of {
            if at < *weight {
                return *what;
            }
            at -= weight;
        }
        unreachable!("what is chosen is below the sum of all weights")
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
