//! When something is due that is to be done at set times.
