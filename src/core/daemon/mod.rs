//! The daemon as a whole: how it is, who is connected, what operators ask of it.

pub mod announcement;
pub mod cluster;
pub mod command;
pub mod health;
pub mod operator;
pub mod presence;
