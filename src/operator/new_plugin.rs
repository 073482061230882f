//! `clawmux plugin new`: a guest crate to begin with. It needs no daemon.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::{Global, NewPlugin};
use crate::exit::{FAILED, Failure, USAGE};
use crate::terminal::{json_line, say};

const CARGO: &str = include_str!("new_plugin/cargo.toml.txt");
const MANIFEST: &str = include_str!("new_plugin/manifest.toml.txt");
const TOOL: &str = include_str!("new_plugin/tool.rs.txt");
const ADAPTER: &str = include_str!("new_plugin/adapter.rs.txt");

/// The longest name.
const NAME_CHARS_MAX: usize = 64;

/// What no crate can be called: words of the language, and the crates that come with it.
const RESERVED: [&str; 58] = [
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "core",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "extism_pdk",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc_macro",
    "pub",
    "ref",
    "return",
    "self",
    "serde",
    "serde_json",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
];

/// Runs `plugin new`.
///
/// # Errors
/// Status 2 if the name can't be one; 1 if its folder is there, or can't be written.
pub(super) fn write(global: &Global, options: &NewPlugin) -> Result<(), Failure> {
    let name = &options.name;
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let begins = name.chars().next().is_some_and(|c| c.is_ascii_lowercase());
    if !begins || !name.chars().all(is_plain) || name.len() > NAME_CHARS_MAX {
        let why = format!(
            "a plugin's name begins with a lowercase letter and has only such, digits, - and _, at most \
             {NAME_CHARS_MAX}: {name:?} can't be one"
        );
        return Err(Failure::new(USAGE, why));
    }
    let library = name.replace('-', "_");
    if RESERVED.contains(&library.as_str()) {
        let why =
            format!("no Rust crate can be called {name}, so no plugin written in Rust: choose another name");
        return Err(Failure::new(USAGE, why));
    }
    let folder = options.into.clone().unwrap_or_else(|| PathBuf::from(name));
    if folder.symlink_metadata().is_ok() {
        let why = format!("{} is there already: name another folder with --into", folder.display());
        return Err(Failure::new(FAILED, why));
    }
    let (source, description) = match options.adapter {
        true => (ADAPTER, "Lets people write from another platform."),
        false => (TOOL, "Greets somebody by their name."),
    };
    let filled = |template: &str| {
        template
            .replace("{{name}}", name)
            .replace("{{lib}}", &library)
            .replace("{{description}}", description)
    };
    let files = [
        ("Cargo.toml".to_owned(), filled(CARGO)),
        (format!("{name}.toml"), filled(MANIFEST)),
        ("src/lib.rs".to_owned(), filled(source)),
        (".gitignore".to_owned(), "/target\n".to_owned()),
    ];
    for (file, text) in &files {
        put(&folder.join(file), text)?;
    }
    if global.json {
        let written: Vec<&str> = files.iter().map(|(file, _)| file.as_str()).collect();
        say(&json_line(&json!({ "plugin": name, "folder": folder.display().to_string(), "files": written })));
        return Ok(());
    }
    say(&next_steps(name, &library, &folder, options.adapter));
    Ok(())
}

fn put(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().unwrap_or(path);
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, text));
    written.map_err(|error| Failure::new(FAILED, format!("{}: {error}", path.display())))
}

/// A path as a shell reads it.
fn quoted(path: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '-' | '_' | '+');
    match path.chars().all(is_plain) {
        true => path.to_owned(),
        false => format!("'{}'", path.replace('\'', "'\\''")),
    }
}

/// What to do with it, as commands to copy.
fn next_steps(name: &str, library: &str, folder: &Path, is_adapter: bool) -> String {
    let folder = quoted(&folder.display().to_string());
    let used = match is_adapter {
        true => format!(
            "add to gateway.toml:   [[plugins]]\n                       name = \"{name}\"\n                       path = \"plugins/{name}.wasm\"\n                       [channels.{name}]\nthen:                  clawmux check && clawmux config reload"
        ),
        false => format!(
            "load it:               clawmux plugin load {name}\ntry it:                clawmux plugin call {name} '{{\"name\":\"Ada\"}}'"
        ),
    };
    format!(
        "wrote {folder}: src/lib.rs is the plugin, {name}.toml says what it needs\n\n\
         test it:               cd {folder} && cargo test\n\
         once, to build it:     rustup target add wasm32-unknown-unknown\n\
         build it:              cargo build --release --target wasm32-unknown-unknown\n\
         put it into the home:  mkdir -p ~/.clawmux/plugins && cp {name}.toml ~/.clawmux/plugins/ &&\n\
         \x20                      cp target/wasm32-unknown-unknown/release/{library}.wasm ~/.clawmux/plugins/{name}.wasm\n{used}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_be_filled_in() {
        let steps = next_steps("my-tool", "my_tool", Path::new("my-tool"), false);
        assert!(steps.contains("release/my_tool.wasm ~/.clawmux/plugins/my-tool.wasm"), "{steps}");
        let steps = next_steps("x", "x", Path::new("it's here"), false);
        assert!(steps.contains("cd 'it'\\''s here' && cargo test"), "{steps}");
        for template in [CARGO, MANIFEST, TOOL, ADAPTER] {
            let known = ["{{name}}", "{{lib}}", "{{description}}"];
            let rest = known.iter().fold(template.to_owned(), |text, known| text.replace(known, ""));
            assert!(!rest.contains("{{"), "{rest}");
        }
    }
}
