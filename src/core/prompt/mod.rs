//! What a prompt brings along, and how it is to be answered.

pub mod answer_to;
pub mod attachment;
pub mod local_file;
pub mod run_options;
pub mod settings;
pub mod thinking;
