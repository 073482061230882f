//! Small plots for terminals: a bar for a share, a line of bars for days.

/// The heights of a bar, from the lowest.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The parts of a block, from the thinnest.
const PARTS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// A bar for each value, as high as it is against the highest; a dot for none.
pub(super) fn line(values: &[u64]) -> String {
    let most = values.iter().copied().max().unwrap_or(0);
    values.iter().map(|value| eighths(*value, most, 1).map_or('·', |eighth| HEIGHTS[eighth - 1])).collect()
}

/// A bar as long as `value` is against `most`, which is `columns` long; nothing for none.
pub(super) fn bar(value: u64, most: u64, columns: usize) -> String {
    let Some(length) = eighths(value, most, columns) else { return String::new() };
    let mut bar = String::from_iter(std::iter::repeat_n(PARTS[7], length / 8));
    bar.extend((length % 8 > 0).then(|| PARTS[length % 8 - 1]));
    bar
}

/// How many eighths of so many blocks; at least one of what is not nothing.
fn eighths(value: u64, most: u64, blocks: usize) -> Option<usize> {
    let whole = blocks * 8;
    let share = u128::from(value) * whole as u128 / u128::from(most.max(1));
    (value > 0).then(|| usize::try_from(share).unwrap_or(whole).clamp(1, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_large_as_their_values() {
        assert_eq!(line(&[0, 1, 50, 100, 99]), "·▁▄█▇");
        assert_eq!((line(&[]), line(&[0, 0]), line(&[u64::MAX])), ("".into(), "··".into(), "█".into()));
        assert_eq!([100, 50, 45, 1, 0].map(|value| bar(value, 100, 4)), ["████", "██", "█▊", "▏", ""]);
        assert_eq!(bar(7, 0, 2), "██", "more than the most is the most");
    }
}
