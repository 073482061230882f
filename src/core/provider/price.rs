//! What models cost in money: US dollars, counted in whole numbers, so that sums are exact.

use std::fmt;

use super::usage::Usage;

/// Billionths in a dollar.
const NANOS: u64 = 1_000_000_000;

/// The most dollars that a budget or a price per million tokens can name.
pub const DOLLARS_MAX: f64 = 1_000_000.0;

/// An amount of US dollars, in billionths: one token costs a fraction of a cent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Money(u64);

impl Money {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// So many billionths of a dollar.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// So many dollars, to the nearest billionth. None where that is no number from 0 to [`DOLLARS_MAX`].
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        let is_amount = (0.0..=DOLLARS_MAX).contains(&dollars);
        is_amount.then(|| Self((dollars * NANOS as f64).round() as u64))
    }

    /// In billionths of a dollar.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// In dollars, for people and for formats that have no whole numbers of less.
    pub fn dollars(self) -> f64 {
        self.0 as f64 / NANOS as f64
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What is left of this without the other.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Money {
    /// `$1.50`, with more digits than two where they say something, up to millionths.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dollars, nanos) = (self.0 / NANOS, self.0 % NANOS);
        let digits = format!("{:06}", nanos / 1000);
        let said = digits.trim_end_matches('0').len().max(2);
        write!(f, "${dollars}.{}", &digits[..said])
    }
}

/// What tokens of one sort cost each, in millionths of a dollar for a million of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// Of a price in dollars for a million tokens. None where that is no number from 0 to [`DOLLARS_MAX`].
    pub fn per_million(dollars: f64) -> Option<Self> {
        let is_price = (0.0..=DOLLARS_MAX).contains(&dollars);
        is_price.then(|| Self((dollars * 1e6).round() as u64))
    }

    /// The price in dollars for a million tokens.
    pub fn dollars_per_million(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// What so many tokens cost, in millionths of a millionth of a dollar.
    fn of(self, tokens: u64) -> u128 {
        u128::from(self.0) * u128::from(tokens)
    }
}

/// What the tokens of a model cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Each token that the model reads.
    pub input: Rate,
    /// Each token that it writes.
    pub output: Rate,
    /// Each that it reads from a cache; none = as any other.
    pub cache_read: Option<Rate>,
    /// Each that is put into a cache; none = as any other.
    pub cache_write: Option<Rate>,
}

impl Price {
    /// What this usage costs, rounded up.
    pub fn of(&self, usage: Usage) -> Money {
        let read = self.cache_read.unwrap_or(self.input).of(usage.cache_read_tokens);
        let written = self.cache_write.unwrap_or(self.input).of(usage.cache_write_tokens);
        rounded_up(self.input.of(usage.fresh_input()) + read + written + self.output.of(usage.output_tokens))
    }

    /// The most that so much input costs, whatever of it is cached.
    pub fn input_at_most(&self, tokens: u64) -> Money {
        rounded_up(self.dearest_input().of(tokens))
    }

    /// The most that so much input and output cost together.
    pub fn at_most(&self, input: u64, output: u64) -> Money {
        rounded_up(self.dearest_input().of(input) + self.output.of(output))
    }

    /// How many tokens of output this much money buys at least; none where output costs nothing.
    pub fn output_for(&self, money: Money) -> Option<u64> {
        let bought = (u128::from(money.nanos()) * 1000).checked_div(u128::from(self.output.0))?;
        Some(u64::try_from(bought).unwrap_or(u64::MAX))
    }

    /// The higher of each of two prices: what is enough for either model.
    #[must_use]
    pub fn higher(self, other: Self) -> Self {
        let cached = |own: Option<Rate>, input: Rate| own.unwrap_or(input);
        Self {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            cache_read: Some(cached(self.cache_read, self.input).max(cached(other.cache_read, other.input))),
            cache_write: Some(
                cached(self.cache_write, self.input).max(cached(other.cache_write, other.input)),
            ),
        }
    }

    fn dearest_input(&self) -> Rate {
        self.input.max(self.cache_read.unwrap_or_default()).max(self.cache_write.unwrap_or_default())
    }
}

fn rounded_up(picos: u128) -> Money {
    Money(u64::try_from(picos.div_ceil(1000)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(dollars: f64) -> Rate {
        Rate::per_million(dollars).unwrap()
    }

    #[test]
    fn what_is_cached_has_a_price_of_its_own() {
        let price = Price {
            input: rate(3.0),
            output: rate(15.0),
            cache_read: Some(rate(0.3)),
            cache_write: Some(rate(3.75)),
        };
        let usage = Usage { cache_read_tokens: 600, cache_write_tokens: 100, ..Usage::new(1000, 10) };
        // 300 fresh at 3, 600 at 0.3, 100 at 3.75 and 10 at 15 millionths of a dollar.
        assert_eq!(price.of(usage), Money::from_nanos(900_000 + 180_000 + 375_000 + 150_000));
        let plain = Price { cache_read: None, cache_write: None, ..price };
        assert_eq!(plain.of(usage), Money::from_nanos(3_000_000 + 150_000));
        assert_eq!(Price::default().of(usage), Money::ZERO, "what is free costs nothing");
    }

    #[test]
    fn amounts_are_said_as_people_write_them() {
        for (nanos, said) in [
            (0, "$0.00"),
            (1_500_000_000, "$1.50"),
            (12_345_678_900, "$12.345678"),
            (500_000, "$0.0005"),
            (99, "$0.00"),
        ] {
            assert_eq!(Money::from_nanos(nanos).to_string(), said);
        }
        assert_eq!(Money::from_dollars(0.07), Some(Money::from_nanos(70_000_000)));
        for no_amount in [-0.01, f64::NAN, f64::INFINITY, 1e12] {
            assert_eq!((Money::from_dollars(no_amount), Rate::per_million(no_amount)), (None, None));
        }
    }

    fn any_price() -> impl Strategy<Value = Price> {
        let rate = || (0u64..1_000_000_000).prop_map(Rate);
        (rate(), rate(), proptest::option::of(rate()), proptest::option::of(rate())).prop_map(
            |(input, output, cache_read, cache_write)| Price { input, output, cache_read, cache_write },
        )
    }

    proptest! {
        #[test]
        fn no_split_of_the_input_costs_more_than_its_most(
            price in any_price(), other in any_price(), parts in any::<[u16; 4]>(), left in 0u64..1 << 40,
        ) {
            let [fresh, read, written, output] = parts.map(u64::from);
            let input = fresh + read + written;
            let usage = Usage { cache_read_tokens: read, cache_write_tokens: written, ..Usage::new(input, output) };
            prop_assert!(price.of(usage) <= price.at_most(input, output));
            prop_assert!(price.of(usage) <= price.higher(other).at_most(input, output));
            let left = Money::from_nanos(left);
            if let Some(bought) = price.output_for(left) {
                prop_assert!(price.at_most(0, bought) <= left);
            }
        }
    }
}
