//! Whether each question of a batch got its answer.
//!
//! A store that calls back for no more than some of the keys that it was asked for would be quick, and no value would be wrong. Measured loops
//! count the answers; audits, which nobody times, look that each place got one.

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
