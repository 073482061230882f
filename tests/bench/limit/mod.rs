//! The limit programs: as little as can be done for the same bytes on the same wires. Each is this program again,
//! with a name as its first argument; it prints where it listens.

pub mod actix;
pub mod echo;
pub mod relay;

/// Becomes the limit program that these arguments name, if they do.
pub fn run(args: &[String]) -> bool {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["limit-echo"] => echo::serve(None, None),
        ["limit-lines", home] => echo::serve(Some(home.as_ref()), None),
        ["limit-append", file] => echo::serve(None, Some(file.as_ref())),
        ["limit-relay", model] => relay::relay(model),
        ["limit-fan", model] => relay::fan(model),
        ["limit-actix-echo"] => actix::echo(),
        ["limit-actix-relay", model] => actix::relay(model),
        _ => return false,
    }
    true
}
