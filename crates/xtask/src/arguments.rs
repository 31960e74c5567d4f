//! What is asked for.

use crate::crew::WORKER;
use esker_sim::crash::store::StoreKind;

/// The arguments of a lane.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) lane: String,
    pub(crate) cuts: u64,
    pub(crate) exhaustive: Option<usize>,
    pub(crate) seed: u64,
    pub(crate) programs: Option<u64>,
    pub(crate) jobs: usize,
    pub(crate) stride: u64,
    pub(crate) violations: usize,
    pub(crate) strict: bool,
    pub(crate) always: bool,
    pub(crate) crowds: bool,
    pub(crate) after_cuts: bool,
    pub(crate) kind: StoreKind,
    pub(crate) kills: u64,
    pub(crate) minutes: u64,
    /// One of the crew's processes.
    pub(crate) is_worker: bool,
}

impl Arguments {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let lane = words
            .next()
            .filter(|lane| ["crash", "faults", "rot", "kill", "processes", "coverage", "golden", "soak"].contains(&lane.as_str()))
            .ok_or("which lane?")?;
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let mut arguments = Arguments {
            lane,
            cuts: 1_000_000,
            exhaustive: None,
            seed: 0,
            programs: None,
            jobs,
            stride: 1,
            violations: 3,
            strict: false,
            always: false,
            crowds: false,
            after_cuts: false,
            kind: StoreKind::Plain,
            kills: 100,
            minutes: 1,
            is_worker: false,
        };
        while let Some(word) = words.next() {
            let mut value = || number(&words.next().ok_or(format!("{word} wants a number"))?);
            match word.as_str() {
                "--cuts" => arguments.cuts = value()?,
                "--kills" | "--n" => arguments.kills = value()?,
                "--exhaustive" => arguments.exhaustive = Some(value()? as usize),
                "--seed" => arguments.seed = value()?,
                "--programs" => arguments.programs = Some(value()?),
                "--minutes" => arguments.minutes = value()?,
                "--jobs" => arguments.jobs = value()?.max(1) as usize,
                "--stride" => arguments.stride = value()?.max(1),
                "--keep-going" => arguments.violations = value()?.max(1) as usize,
                "--all" => arguments.programs = Some(200),
                "--strict" => arguments.strict = true,
                "--always" => arguments.always = true,
                "--crowds" => arguments.crowds = true,
                "--history" => arguments.kind = StoreKind::History,
                "--cache" => arguments.kind = StoreKind::Cache,
                "--rebuilt" => arguments.kind = StoreKind::Rebuilt,
                "--after-cuts" => arguments.after_cuts = true,
                WORKER => arguments.is_worker = true,
                other => return Err(format!("what is {other}?")),
            }
        }
        let counts = [arguments.cuts, arguments.kills, arguments.minutes, arguments.programs.unwrap_or(1)];
        if counts.contains(&0) || arguments.exhaustive == Some(0) {
            return Err("a lane that tries nothing finds nothing: zero is no number for it".to_owned());
        }
        Ok(arguments)
    }
}

/// A number, with `k` or `M` or `G` for thousands, millions and billions.
fn number(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    digits.replace('_', "").parse::<u64>().map(|n| n * unit).map_err(|_| format!("{text} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_that_tries_nothing_is_refused() {
        let parse = |text: &str| Arguments::parse(text.split(' ').map(str::to_owned));
        assert_eq!(parse("soak --minutes 2").unwrap().minutes, 2);
        for nothing in ["soak --minutes 0", "crash --cuts 0", "crash --exhaustive 0", "faults --programs 0", "kill --kills 0"] {
            assert!(parse(nothing).unwrap_err().contains("zero"), "{nothing}");
        }
    }
}
