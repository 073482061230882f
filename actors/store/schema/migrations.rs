//! What brings an older store up, format by format: `migrations/N.sql` makes format N of the one before.
//!
//! A step is never changed once it was released: files that went through it are out there. A new one is
//! added at the end, and `current.sql`, which makes new stores, is written anew: a test says how.

/// What takes a store from format N (its index here) to format N + 1.
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("migrations/1.sql"),
    include_str!("migrations/2.sql"),
    include_str!("migrations/3.sql"),
    include_str!("migrations/4.sql"),
    include_str!("migrations/5.sql"),
    include_str!("migrations/6.sql"),
    include_str!("migrations/7.sql"),
    include_str!("migrations/8.sql"),
    include_str!("migrations/9.sql"),
    include_str!("migrations/10.sql"),
    include_str!("migrations/11.sql"),
    include_str!("migrations/12.sql"),
    include_str!("migrations/13.sql"),
    include_str!("migrations/14.sql"),
    include_str!("migrations/15.sql"),
    include_str!("migrations/16.sql"),
    include_str!("migrations/17.sql"),
    include_str!("migrations/18.sql"),
    include_str!("migrations/19.sql"),
    include_str!("migrations/20.sql"),
];
