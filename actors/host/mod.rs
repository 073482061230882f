//! What the operating system offers: sockets that were passed on, users and groups, memory, files.

pub mod activation;
pub mod bound;
pub mod group;
pub mod heap;
pub mod keeper;
pub mod kept;
pub(crate) mod machine;
pub(crate) mod open_files;
pub(crate) mod process;
pub mod regular_file;
pub mod socket_owner;
pub(crate) mod whole_file;
