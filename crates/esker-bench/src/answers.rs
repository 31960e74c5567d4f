//! Whether each question of a batch got its answer.
//!
//! A store that calls back for no more than some of the keys that it was asked for would be quick, and no value would be wrong. Measured
//! loops count the answers; audits, which nobody times, look that each place got one.

use anyhow::{Result, ensure};

/// The places of a batch that were answered.
pub(crate) struct Answers {
    is_known: Vec<bool>,
    /// Answers to what was answered before, or not asked.
    surplus: u64,
}

impl Answers {
    /// Of so many questions, all open.
    pub(crate) fn to(questions: usize) -> Self {
        Self { is_known: vec![false; questions], surplus: 0 }
    }

    /// An answer came.
    pub(crate) fn note(&mut self, place: usize) {
        match self.is_known.get_mut(place) {
            Some(is_known) if !*is_known => *is_known = true,
            _ => self.surplus += 1,
        }
    }

    /// How many never came, or came once too often.
    pub(crate) fn faults(&self) -> u64 {
        self.is_known.iter().filter(|is_known| !**is_known).count() as u64 + self.surplus
    }
}

/// The sum of some counters, each of which is there.
pub(crate) struct Sum {
    sum: u64,
    lost: u64,
    answers: Answers,
}

impl Sum {
    pub(crate) fn of(keys: &[u64]) -> Self {
        Self { sum: 0, lost: 0, answers: Answers::to(keys.len()) }
    }

    pub(crate) fn add(&mut self, at: usize, value: Option<u64>) {
        self.answers.note(at);
        match value {
            Some(value) => self.sum += value,
            None => self.lost += 1,
        }
    }

    pub(crate) fn get(self) -> Result<u64> {
        let lost = self.lost + self.answers.faults();
        ensure!(lost == 0, "{lost} keys are lost");
        Ok(self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_has_one_answer() {
        let faults = |places: &[usize]| {
            let mut answers = Answers::to(3);
            places.iter().for_each(|place| answers.note(*place));
            answers.faults()
        };
        assert_eq!((faults(&[2, 0, 1]), faults(&[]), faults(&[1])), (0, 3, 2));
        // As many answers as questions, and yet not one for each.
        assert_eq!((faults(&[0, 1, 1]), faults(&[0, 1, 3]), faults(&[0, 1, 2, 2])), (2, 2, 1));
    }
}
