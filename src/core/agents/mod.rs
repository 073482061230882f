//! Agents that work for sessions, and their teams.

pub mod registry;
pub mod subagent;
pub mod team;
