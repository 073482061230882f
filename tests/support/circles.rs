//! Finds modules that import each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The circles among the modules of a crate: what of each file or folder right below `root` imports, in a
/// path that begins with `crate::`. Of each circle every import that belongs to it is told, as
/// `file -> module`. Test code does not count: what stands under `#[cfg(test)]`, `tests.rs` and `tests/`.
///
/// # Panics
/// Where a file below `root` can't be read.
pub fn circles(root: &Path) -> Vec<Vec<String>> {
    let mut files = BTreeMap::new();
    collect(root, "", &mut files);
    let module = |file: &str| file.split('/').next().unwrap_or(file).trim_end_matches(".rs").to_owned();
    let modules: BTreeSet<String> = files.keys().map(|file| module(file)).collect();
    let mut imports: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for (file, text) in &files {
        let from = module(file);
        for to in imported(&without_tests(text)) {
            if to != from && modules.contains(&to) {
                let import = format!("{file} -> {to}");
                imports.entry(from.clone()).or_default().entry(to).or_default().push(import);
            }
        }
    }
    let reached = |from: &str| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(module) = next.pop() {
            let to = imports.get(&module).into_iter().flat_map(BTreeMap::keys);
            next.extend(to.filter(|&to| reached.insert(to.clone())).cloned());
        }
        reached
    };
    let reach: BTreeMap<&String, BTreeSet<String>> =
        modules.iter().map(|from| (from, reached(from))).collect();
    let mut circles: BTreeMap<Vec<&String>, Vec<String>> = BTreeMap::new();
    for from in modules.iter().filter(|&from| reach[from].contains(from)) {
        let circle: Vec<&String> =
            modules.iter().filter(|&to| reach[from].contains(to) && reach[to].contains(from)).collect();
        let within = imports[from].iter().filter(|(to, _)| circle.contains(to));
        circles.entry(circle.clone()).or_default().extend(within.flat_map(|(_, found)| found.clone()));
    }
    circles.into_values().collect()
}

/// The text of each file below a folder, by its path from the root; tests and the crate's own root left out.
fn collect(folder: &Path, path: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (name, at) = (entry.file_name().into_string().unwrap(), entry.path());
        let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        if at.is_dir() && name != "tests" {
            collect(&at, &path, files);
        } else if name.ends_with(".rs") && name != "tests.rs" && path != "lib.rs" {
            files.insert(path, fs::read_to_string(&at).unwrap());
        }
    }
}

/// Lines that are neither comments nor items behind `#[cfg(test)]`, which end where their indentation does.
fn without_tests(text: &str) -> String {
    let mut left = String::new();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            left.extend([line, "\n"]);
            continue;
        }
        let end = line.replace("#[cfg(test)]", "}");
        let mut item = lines.by_ref().skip_while(|line| line.trim_start().starts_with("#["));
        if item.next().is_some_and(|line| !line.ends_with(';') && !line.ends_with('}')) {
            item.find(|line| *line == end);
        }
    }
    left
}

/// The modules that are named right behind `crate::`, alone or in braces.
fn imported(text: &str) -> BTreeSet<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = BTreeSet::new();
    for rest in text.split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(word(rest));
            continue;
        };
        let (mut depth, mut begins) = (0, true);
        for (at, c) in group.char_indices() {
            match c {
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                '{' => depth += 1,
                ',' if depth == 0 => begins = true,
                c if begins && !c.is_whitespace() => {
                    found.insert(word(&group[at..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    found
}
