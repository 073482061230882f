//! Runs of several sessions that take place one at a time, in the order in which they were accepted.
