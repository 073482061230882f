//! The heartbeat: what its file says, and what the model answers where nothing is to be done.

/// What the model answers where nothing needs anybody's attention. (Source: the OpenClaw protocol's
/// agents, whose heartbeat files and answers mean the same here.)
const ALL_IS_WELL: &str = "HEARTBEAT_OK";

/// So many characters may stand beside that and it still means it.
pub const ASIDE_CHARS_MAX: usize = 300;

/// Whether there is anything to do in a heartbeat file: more than blank lines, headings, comments and
/// list items without text. (Source: the same.)
pub fn has_tasks(file: &str) -> bool {
    let mut is_comment = false;
    file.lines().map(str::trim).any(|line| {
        if is_comment || line.starts_with("<!--") {
            is_comment = !line.contains("-->");
            return line.split_once("-->").is_some_and(|(_, rest)| says_something(rest.trim()));
        }
        says_something(line)
    })
}

/// Whether a line is more than a heading or the mark of a list item.
fn says_something(line: &str) -> bool {
    let heading = line.trim_start_matches('#');
    let is_heading = heading.len() < line.len() && heading.chars().next().is_none_or(char::is_whitespace);
    let item = line.strip_prefix(['-', '*', '+']).map(str::trim);
    let is_empty_item = item.is_some_and(|item| matches!(item, "" | "[]" | "[ ]" | "[x]" | "[X]"));
    !(line.is_empty() || is_heading || is_empty_item)
}

/// So much of the file is shown, in bytes.
pub const FILE_BYTES_MAX: usize = 64 * 1024;

/// What the model is asked, given what is in the file, or the beginning of that.
pub fn prompt(file: &str) -> String {
    let shown = &file[..file.floor_char_boundary(FILE_BYTES_MAX)];
    let below = match shown.len() == file.len() {
        true => "Below is HEARTBEAT.md, which says".to_owned(),
        false => {
            format!("Below are the first {FILE_BYTES_MAX} bytes of HEARTBEAT.md, without the rest; it says")
        }
    };
    format!(
        "This is a heartbeat: nobody is waiting for an answer. {below} what to look after. \
         Follow it strictly; do not infer or repeat old tasks from earlier in this conversation. If nothing needs \
         attention, answer {ALL_IS_WELL} and nothing else.\n\n{}",
        shown.trim()
    )
}

/// Whether an answer says that nothing needs attention.
pub fn is_well(answer: &str) -> bool {
    let answer = answer.trim();
    let rest = answer.strip_prefix(ALL_IS_WELL).or_else(|| answer.strip_suffix(ALL_IS_WELL));
    answer.is_empty() || rest.is_some_and(|rest| rest.trim().chars().count() <= ASIDE_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_tasks_is_known() {
        for empty in [
            "",
            "  \n\t\n",
            "# Heartbeat\n\n## Tasks\n",
            "#",
            "- \n* [ ]\n+ [x]",
            "<!-- nothing yet -->",
            "# A\n<!--\nnone of this\ncounts -->\n",
            "\u{feff}".trim_start_matches('\u{feff}'),
        ] {
            assert!(!has_tasks(empty), "{empty:?}");
        }
        for busy in [
            "water the herons",
            "# Tasks\n- [ ] look at the mail",
            "#herons",
            "1.",
            "<!-- a --> b",
            "<!--\n-->\n- c",
            "-- x",
            "[ ]",
        ] {
            assert!(has_tasks(busy), "{busy:?}");
        }
        assert!(prompt(" look \n").ends_with("\n\nlook"));
        assert!(prompt("look").contains("Below is HEARTBEAT.md, which says"));
        let long = prompt(&format!("x{}", "\u{130}".repeat(FILE_BYTES_MAX / 2)));
        assert!(long.contains("Below are the first 65536 bytes of HEARTBEAT.md, without the rest"));
        assert!(long.ends_with('\u{130}') && long.len() < FILE_BYTES_MAX + 1024, "{}", long.len());
    }

    #[test]
    fn an_answer_that_says_that_all_is_well_is_known() {
        for well in
            ["", "HEARTBEAT_OK", " HEARTBEAT_OK\n", "HEARTBEAT_OK all quiet", "Nothing new. HEARTBEAT_OK"]
        {
            assert!(is_well(well), "{well:?}");
        }
        let long = format!("HEARTBEAT_OK {}", "x".repeat(301));
        for alert in ["the mail is full", &long, "say HEARTBEAT_OK when done, please"] {
            assert!(!is_well(alert), "{alert:?}");
        }
    }
}
