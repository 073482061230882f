//! Reading and calculating an expression.
//!
//! ```text
//! sum     = product { ("+" | "-") product }
//! product = sign { ("*" | "/" | "%") sign }
//! sign    = ("+" | "-") sign | power
//! power   = atom [ "^" sign ]
//! atom    = number | "(" sum ")" | name "(" sum { "," sum } ")"
//! ```

use num_bigint::{BigInt, Sign};
use num_integer::Integer as _;
use num_rational::BigRational;
use num_traits::{One as _, Signed as _, ToPrimitive as _, Zero as _};

/// The most bits of a numerator or denominator: some 9,000 decimal digits.
const BITS_MAX: u64 = 30_000;

/// How deep expressions may be nested.
const DEPTH_MAX: usize = 100;

/// The longest expression, in bytes.
const BYTES_MAX: usize = 4000;

/// The most decimal places that are written.
const DIGITS_MAX: usize = 1000;

/// The value of an expression in words: exact, or rounded to so many decimal places.
pub fn calculate(text: &str, digits: Option<usize>) -> Result<String, String> {
    if text.len() > BYTES_MAX {
        return Err(format!("the expression has {} bytes, more than {BYTES_MAX}", text.len()));
    }
    if digits.is_some_and(|digits| digits > DIGITS_MAX) {
        return Err(format!("digits is at most {DIGITS_MAX}"));
    }
    let mut parser = Parser { text, at: 0, depth: 0 };
    let value = parser.sum()?;
    match parser.peek() {
        None => Ok(match digits {
            Some(digits) => rounded(&value, digits),
            None => exact(&value),
        }),
        Some(found) => Err(parser.unexpected(found)),
    }
}

/// A whole number, a decimal that ends, or a fraction.
fn exact(value: &BigRational) -> String {
    let mut rest = value.denom().clone();
    let mut places = 0;
    let (ten, two, five) = (BigInt::from(10), BigInt::from(2), BigInt::from(5));
    while !rest.is_one() && places < 40 {
        let common = rest.gcd(&ten);
        if common.is_one() {
            break;
        }
        rest /= if common == ten { ten.clone() } else if common == two { two.clone() } else { five.clone() };
        places += 1;
    }
    if rest.is_one() { rounded(value, places) } else { format!("{}/{}", value.numer(), value.denom()) }
}

/// Rounded to so many decimal places, halves away from zero.
fn rounded(value: &BigRational, digits: usize) -> String {
    let scale = BigInt::from(10).pow(digits as u32);
    let scaled = (value * BigRational::from(scale)).round().to_integer();
    let sign = if scaled.sign() == Sign::Minus { "-" } else { "" };
    let text = scaled.abs().to_string();
    if digits == 0 {
        return format!("{sign}{text}");
    }
    let text = format!("{text:0>width$}", width = digits + 1);
    let (whole, decimals) = text.split_at(text.len() - digits);
    format!("{sign}{whole}.{decimals}")
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

type Value = Result<BigRational, String>;

impl Parser<'_> {
    fn peek(&mut self) -> Option<char> {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest.chars().next()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let is_there = self.peek() == Some(wanted);
        if is_there {
            self.at += wanted.len_utf8();
        }
        is_there
    }

    fn unexpected(&self, found: char) -> String {
        format!("{found:?} is not expected at character {}", self.text[..self.at].chars().count() + 1)
    }

    fn sum(&mut self) -> Value {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("it is nested more than {DEPTH_MAX} deep"));
        }
        let mut value = self.product()?;
        loop {
            if self.eat('+') {
                value = bounded(value + self.product()?)?;
            } else if self.eat('-') {
                value = bounded(value - self.product()?)?;
            } else {
                self.depth -= 1;
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Value {
        let mut value = self.sign()?;
        loop {
            if self.eat('*') {
                value = bounded(value * self.sign()?)?;
            } else if self.eat('/') {
                value = bounded(value / not_zero(self.sign()?)?)?;
            } else if self.eat('%') {
                let by = not_zero(self.sign()?)?;
                // As mathematics has it: the remainder has the sign of what is divided by.
                value = bounded(&value - &by * (&value / &by).floor())?;
            } else {
                return Ok(value);
            }
        }
    }

    fn sign(&mut self) -> Value {
        let mut is_negative = false;
        loop {
            if self.eat('-') {
                is_negative = !is_negative;
            } else if !self.eat('+') {
                break;
            }
        }
        let value = self.power()?;
        Ok(if is_negative { -value } else { value })
    }

    fn power(&mut self) -> Value {
        let base = self.atom()?;
        if !self.eat('^') {
            return Ok(base);
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("it is nested more than {DEPTH_MAX} deep"));
        }
        let exponent = self.sign()?;
        self.depth -= 1;
        raised(base, &exponent)
    }

    fn atom(&mut self) -> Value {
        match self.peek() {
            None => Err("it ends where a number is expected".into()),
            Some('(') => {
                self.at += 1;
                let value = self.sum()?;
                if self.eat(')') { Ok(value) } else { Err("a ) is missing".into()) }
            }
            Some(digit) if digit.is_ascii_digit() || digit == '.' => self.number(),
            Some(letter) if letter.is_ascii_alphabetic() => self.call(),
            Some(other) => Err(self.unexpected(other)),
        }
    }

    fn number(&mut self) -> Value {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(rest.len());
        let text = &rest[..end];
        self.at += end;
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let digits: String = [whole, decimals].concat().replace('_', "");
        if digits.is_empty() || digits.contains('.') {
            return Err(format!("{text:?} is not a number"));
        }
        let places = decimals.bytes().filter(u8::is_ascii_digit).count();
        let numerator: BigInt = digits.parse().map_err(|_| format!("{text:?} is not a number"))?;
        bounded(BigRational::new(numerator, BigInt::from(10).pow(places as u32)))
    }

    fn call(&mut self) -> Value {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let name = rest[..end].to_owned();
        self.at += end;
        if !self.eat('(') {
            return Err(format!("{name:?} is not known; functions are {FUNCTIONS}"));
        }
        let mut given = vec![self.sum()?];
        while self.eat(',') {
            given.push(self.sum()?);
        }
        if !self.eat(')') {
            return Err("a ) is missing".into());
        }
        function(&name, given)
    }
}

const FUNCTIONS: &str = "abs, floor, ceil, round, sqrt, min, max, gcd, lcm";

fn function(name: &str, mut given: Vec<BigRational>) -> Value {
    let several = matches!(name, "min" | "max" | "gcd" | "lcm");
    if !several && given.len() != 1 {
        return Err(format!("{name} takes one number"));
    }
    let first = given.swap_remove(0);
    let fold = |with: fn(BigRational, BigRational) -> Value| {
        given.iter().cloned().try_fold(first.clone(), with)
    };
    match name {
        "abs" => Ok(first.abs()),
        "floor" => Ok(first.floor()),
        "ceil" => Ok(first.ceil()),
        "round" => Ok(first.round()),
        "sqrt" => {
            let root = BigRational::new(root(first.numer())?, root(first.denom())?);
            if &root * &root == first { Ok(root) } else { Err("the root is not a fraction: it can't be told exactly".into()) }
        }
        "min" => fold(|one, other| Ok(one.min(other))),
        "max" => fold(|one, other| Ok(one.max(other))),
        "gcd" => fold(|one, other| Ok(BigRational::from(whole(&one)?.gcd(&whole(&other)?)))),
        "lcm" => fold(|one, other| bounded(BigRational::from(whole(&one)?.lcm(&whole(&other)?)))),
        _ => Err(format!("{name:?} is not known; functions are {FUNCTIONS}")),
    }
}

fn root(of: &BigInt) -> Result<BigInt, String> {
    if of.is_negative() { Err("the root of a negative number".into()) } else { Ok(of.sqrt()) }
}

fn whole(value: &BigRational) -> Result<BigInt, String> {
    if value.is_integer() { Ok(value.to_integer()) } else { Err(format!("{value} is not a whole number")) }
}

fn not_zero(value: BigRational) -> Value {
    if value.is_zero() { Err("a division by zero".into()) } else { Ok(value) }
}

fn raised(base: BigRational, exponent: &BigRational) -> Value {
    let exponent = whole(exponent).map_err(|_| "an exponent is a whole number".to_owned())?;
    if base.is_zero() && exponent.is_negative() {
        return Err("a division by zero".into());
    }
    if base.is_zero() || base.abs().is_one() {
        let is_odd = exponent.is_odd();
        return Ok(match (exponent.is_zero(), is_odd) {
            (true, _) => BigRational::one(),
            (false, true) => base,
            (false, false) => base.abs(),
        });
    }
    let bits = base.numer().bits().max(base.denom().bits());
    let exponent = exponent.to_i32().filter(|exponent| {
        bits.saturating_sub(1).saturating_mul(u64::from(exponent.unsigned_abs())) <= BITS_MAX
    });
    match exponent {
        Some(exponent) => bounded(base.pow(exponent)),
        None => Err(too_large()),
    }
}

fn bounded(value: BigRational) -> Value {
    if value.numer().bits().max(value.denom().bits()) > BITS_MAX { Err(too_large()) } else { Ok(value) }
}

fn too_large() -> String {
    format!("a number has more than {BITS_MAX} bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_exact() {
        for (text, value) in [
            ("1 + 2 * 3", "7"),
            ("(1 + 2) * 3", "9"),
            ("0.1 + 0.2", "0.3"),
            ("1/3 + 1/6", "0.5"),
            ("1/3", "1/3"),
            ("-2^2", "-4"),
            ("2^-2", "0.25"),
            ("2^3^2", "512"),
            ("--3", "3"),
            ("7 % 3", "1"),
            ("-7 % 3", "2"),
            ("2^100", "1267650600228229401496703205376"),
            ("1_000_000 * 1.5", "1500000"),
            ("sqrt(2.25)", "1.5"),
            ("gcd(12, 18) + lcm(4, 6)", "18"),
            ("max(1, 5/2, 2) - min(3, 1)", "1.5"),
            ("round(2.5) + floor(-0.5) + ceil(0.1) + abs(-1)", "4"),
            ("(-1)^1000000000001", "-1"),
        ] {
            assert_eq!(calculate(text, None).as_deref(), Ok(value), "{text}");
        }
        assert_eq!(calculate("2/3", Some(4)).as_deref(), Ok("0.6667"));
        assert_eq!(calculate("-1/8", Some(2)).as_deref(), Ok("-0.13"));
        assert_eq!(calculate("10^3", Some(0)).as_deref(), Ok("1000"));
    }

    #[test]
    fn what_has_no_value_says_why() {
        let deep = "(".repeat(1000);
        let long = "9".repeat(BYTES_MAX + 1);
        for (text, says) in [
            ("", "it ends"),
            ("1 +", "it ends"),
            ("1 / 0", "division by zero"),
            ("0^-1", "division by zero"),
            ("1 2", "'2' is not expected at character 3"),
            ("x", "\"x\" is not known"),
            ("sin(1)", "\"sin\" is not known"),
            ("1..2", "not a number"),
            ("2^0.5", "whole number"),
            ("sqrt(2)", "can't be told exactly"),
            ("sqrt(-1)", "negative"),
            ("2^2^2^2^2^2", "bits"),
            ("9^999999999999", "bits"),
            ("abs(1, 2)", "takes one"),
            (&deep, "nested"),
            (&long, "bytes"),
            ("1 ÷ 2", "'÷'"),
        ] {
            let error = calculate(text, None).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
