//! Whose turn it is.
//!
//! Run 1 of all rivals comes before run 2 of any, and from run to run the next one begins, so that neither a slow minute of the machine nor
//! what a rival leaves behind for the one after it falls on one alone.

/// The rivals in the order of a run.
pub(crate) fn of_run<T>(rivals: &mut [T], run: usize) -> impl Iterator<Item = &mut T> {
    let (last, first) = rivals.split_at_mut(run % rivals.len().max(1));
    first.iter_mut().chain(last)
}

/// Groups of rivals, which stand side by side, one group after the other.
pub(crate) fn of_run_in_groups<T>(all: &mut [T], run: usize, are_rivals: impl FnMut(&T, &T) -> bool) -> impl Iterator<Item = &mut T> {
    all.chunk_by_mut(are_rivals).flat_map(move |rivals| of_run(rivals, run))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_begins_in_turn_and_nobody_is_left_out() {
        let order = |run| of_run(&mut ['a', 'b', 'c'], run).map(|rival| *rival).collect::<String>();
        assert_eq!([0, 1, 2, 3, 7].map(order), ["abc", "bca", "cab", "abc", "bca"]);
        assert_eq!(of_run(&mut [0; 0], 5).count(), 0);
    }

    #[test]
    fn groups_stay_where_they_are() {
        let mut all = [(1, 'a'), (1, 'b'), (2, 'a'), (2, 'b'), (2, 'c'), (3, 'a')];
        let mut order = |run| of_run_in_groups(&mut all, run, |one, other| one.0 == other.0).map(|rival| rival.1).collect::<String>();
        assert_eq!([0, 1, 2].map(&mut order), ["ababca", "babcaa", "abcaba"]);
    }
}
