//! Bars made of characters.
//!
//! A bar of fixed width is shared among parts in proportion. A part that is not empty always gets at least one
//! column, so that a small region beside a huge one can still be seen; the largest part pays for that.

/// A bar of `width` columns in which every part fills its share with its own character.
pub(crate) fn shares(parts: &[(u64, char)], width: usize) -> String {
    let mut columns = proportional(parts, width);
    for at in 0..parts.len() {
        if parts[at].0 > 0 && columns[at] == 0 {
            columns[at] = take_from_largest(&mut columns);
        }
    }
    let drawn = parts.iter().zip(columns).flat_map(|(&(_, mark), columns)| std::iter::repeat_n(mark, columns));
    drawn.collect()
}

/// A bar that is `part` of `whole` full.
pub(crate) fn filled(part: u64, whole: u64, width: usize) -> String {
    shares(&[(part.min(whole), '█'), (whole.saturating_sub(part), '·')], width)
}

/// How much of `whole` is `part`, in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// Rounds the borders between parts, not the parts, so that the columns add up to the width.
fn proportional(parts: &[(u64, char)], width: usize) -> Vec<usize> {
    let whole: u128 = parts.iter().map(|&(part, _)| u128::from(part)).sum();
    let border = |until: u128| ((until * width as u128 + whole / 2) / whole.max(1)) as usize;
    let (mut until, mut columns) = (0, Vec::new());
    for &(part, _) in parts {
        let from = border(until);
        until += u128::from(part);
        columns.push(border(until) - from);
    }
    columns
}

fn take_from_largest(columns: &mut [usize]) -> usize {
    match columns.iter_mut().max() {
        Some(largest) if *largest > 1 => {
            *largest -= 1;
            1
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fill_the_width() {
        assert_eq!(shares(&[(1, 'a'), (1, 'b')], 10), "aaaaabbbbb");
        assert_eq!(shares(&[(1, 'a'), (1_000_000, 'b'), (1, 'c')], 10), "abbbbbbbbc");
        assert_eq!(shares(&[(0, 'a'), (5, 'b')], 4), "bbbb");
        assert_eq!(shares(&[(0, 'a')], 4), "");
    }

    #[test]
    fn a_bar_never_overflows() {
        assert_eq!(filled(3, 2, 4), "████");
        assert_eq!(filled(0, 2, 4), "····");
    }
}
