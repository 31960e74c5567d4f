//! `esker load`: the rows of a file into a store.
//!
//! The file is opened, and its header and first row read, before the store is: a wrong name, a wrong column, or a file that is something
//! else leaves no store behind.
//! Rows take effect one by one. At the first that does not parse, loading stops and says where; the rows before
//! it stay, and the message counts them, so that the rest can be loaded after a repair (`--skip-rows`). An interrupt ends it the
//! same way, between two rows.

use std::cell::Cell;
use std::time::{Duration, Instant};

use esker::{Durability, Stats};
use indicatif::ProgressBar;

use crate::acknowledge::Acknowledgements;
use crate::args::{Format, LoadArgs, Mode, Opening};
use crate::bytes::{count, rate, size};
use crate::failure::{self, Failure, Outcome};
use crate::input::{self, Input};
use crate::interrupt::Interrupt;
use crate::jsonl::Jsonl;
use crate::rows::{Columns, Pair, Rows, Wanted};
use crate::separated::Separated;
use crate::store::{self, Bytes};
use crate::{out, progress, stats};

/// How many rows go by between two messages behind the bar, or how much time if they come slowly.
const ROWS_A_MESSAGE: u64 = 8192;
const MESSAGE: Duration = Duration::from_millis(200);

/// What was loaded so far.
struct Loaded {
    /// Of the file, those that were passed over included: what is told, and passed over the next time.
    rows: u64,
    skipped: u64,
    bytes: u64,
    /// Where the input, or the store, failed; else it ended between two rows.
    failed_at_line: Option<u64>,
}

impl Loaded {
    fn rows_now(&self) -> u64 {
        self.rows - self.skipped
    }
}

/// What is done between two rows: showing how far the load is, and ending it when asked to.
struct Watch<'a> {
    bar: &'a ProgressBar,
    interrupt: Interrupt,
    /// When the first row was to be stored.
    start: Cell<Instant>,
    told: Cell<Instant>,
}

impl Watch<'_> {
    fn see(&self, loaded: &Loaded) -> Outcome {
        let is_due = || loaded.rows.is_multiple_of(ROWS_A_MESSAGE) || self.told.get().elapsed() >= MESSAGE;
        if !self.bar.is_hidden() && is_due() {
            self.told.set(Instant::now());
            let rate = rate(loaded.rows_now(), self.seconds());
            progress::say(self.bar, format!("{} rows, {rate} rows/s", count(loaded.rows)));
        }
        self.interrupt.check()
    }

    fn seconds(&self) -> f64 {
        self.start.get().elapsed().as_secs_f64()
    }
}

/// Loads a file.
pub(crate) fn run(args: &LoadArgs, opening: Opening) -> Outcome {
    let format = format_of(args)?;
    check_arguments(args, format)?;
    let interrupt = Interrupt::catch()?;
    let Input { text, bar } = input::open(&args.file, &interrupt)?;
    let counts_rows = args.mode == Mode::Count && args.value.is_empty();
    let value = (!counts_rows).then(|| names(&args.value));
    let wanted = Wanted { key: names(&args.key), value, hex: args.hex };
    let mut rows: Box<dyn Rows> = match format {
        Format::Jsonl => Box::new(Jsonl::new(text, wanted)),
        _ => Box::new(Separated::new(text, format, &wanted).map_err(|why| in_file(args, why))?),
    };
    let now = Cell::new(Instant::now());
    let watch = Watch { bar: &bar, interrupt, start: now.clone(), told: now };
    let mut told = Acknowledgements::new(args.acknowledge, opening.durability, &watch.interrupt);
    let mut loaded = Loaded { rows: args.skip_rows, skipped: args.skip_rows, bytes: 0, failed_at_line: None };
    skip(args, &mut *rows, &watch.interrupt)?;
    let mut pair = Pair::default();
    let is_any = rows.next(&mut pair).map_err(|why| unread(args, rows.line(), ("loaded", args.skip_rows), why))?;
    let (mut opened, mut figures) = (None, None);
    let done = store::with(&args.dir, opening, |store| {
        opened = Some(store.clone());
        watch.start.set(Instant::now());
        let first = is_any.then_some(pair);
        let done = load_all(store, args, first, &mut *rows, &watch, &mut told, &mut loaded);
        figures = Some(store.stats());
        if done.is_err() {
            // What was stored is kept; that this cannot be told as well is not the failure to report.
            let _ = told.ended(store, loaded.rows);
        }
        done.map_err(|why| at_line(args, &loaded, why))
    });
    if let Err(why) = done {
        return Err(match opened.map(|store| store.close()) {
            None => why,
            Some(Ok(())) if loaded.failed_at_line.is_some() => why.map(|why| format!("{why} (rows loaded before it: {})", loaded.rows)),
            Some(Ok(())) => after(loaded.rows, why),
            // The first close had failed: how many rows there are is known of no other that was not durable by itself.
            Some(Err(_)) => {
                let is_each_durable = opening.durability == Durability::Always;
                let known = if is_each_durable { loaded.rows } else { told.printed().unwrap_or(loaded.skipped) };
                why.map(|why| format!("{why} (rows known to be stored: {known})"))
            }
        });
    }
    bar.finish_and_clear();
    // All is stored and closed: who is not told that would load it again.
    let told = told.closed(loaded.rows).and_then(|()| report(args, &loaded, watch.seconds(), figures.as_ref()));
    told.map_err(|why| after(loaded.rows, why))
}

fn names(columns: &[Columns]) -> Vec<String> {
    columns.iter().flat_map(|columns| columns.0.iter().cloned()).collect()
}

fn format_of(args: &LoadArgs) -> Result<Format, Failure> {
    args.format.or_else(|| input::guess_format(&args.file)).ok_or_else(|| {
        let name = input::name(&args.file);
        Failure::Usage(format!("{name}: the name does not tell the format; give --format csv, tsv or jsonl"))
    })
}

fn check_arguments(args: &LoadArgs, format: Format) -> Outcome {
    if args.hex && format != Format::Jsonl {
        return Err(Failure::Usage("--hex is for jsonl".to_owned()));
    }
    if args.mode == Mode::Count && names(&args.value).len() > 1 {
        return Err(Failure::Usage("--mode count adds up one column; give one --value, or none".to_owned()));
    }
    Ok(())
}

/// Passes over the rows that an earlier load has stored.
fn skip(args: &LoadArgs, rows: &mut dyn Rows, interrupt: &Interrupt) -> Outcome {
    let mut pair = Pair::default();
    for row in 0..args.skip_rows {
        interrupt.check().map_err(|why| after(args.skip_rows, why))?;
        if !rows.next(&mut pair).map_err(|why| unread(args, rows.line(), ("passed over", row), why))? {
            return Err(in_file(args, Failure::new(format!("it has {row} rows, and is to be loaded behind {}", args.skip_rows))));
        }
    }
    Ok(())
}

fn load_all(
    store: &Bytes,
    args: &LoadArgs,
    first: Option<Pair>,
    rows: &mut dyn Rows,
    watch: &Watch<'_>,
    told: &mut Acknowledgements,
    loaded: &mut Loaded,
) -> Outcome {
    told.during(store, |tell| {
        let mut next = first;
        while let Some(mut pair) = next {
            keep(store, args, &mut pair).inspect_err(|_| loaded.failed_at_line = Some(rows.line()))?;
            loaded.rows += 1;
            loaded.bytes += (pair.key.len() + pair.value.len()) as u64;
            tell(loaded.rows)?;
            watch.see(loaded)?;
            let is_any = rows.next(&mut pair).inspect_err(|why| loaded.failed_at_line = (!why.is_interrupt()).then(|| rows.line()))?;
            next = is_any.then_some(pair);
        }
        Ok(())
    })
}

/// Stores one row.
fn keep(store: &Bytes, args: &LoadArgs, pair: &mut Pair) -> Outcome {
    match args.mode {
        Mode::Put => store.put(&pair.key[..], &pair.value[..])?,
        Mode::Append => {
            pair.value.push(b'\n');
            store.append(&pair.key[..], &pair.value[..])?;
        }
        Mode::Count if args.value.is_empty() => add(store, &pair.key, 1)?,
        Mode::Count => add(store, &pair.key, parse_number(&pair.value)?)?,
    }
    Ok(())
}

/// Adds to a number stored as decimal text. The closure may run again, so it decides everything anew.
fn add(store: &Bytes, key: &[u8], amount: i64) -> Outcome {
    let mut wrong = None;
    store.rmw(key, |old| match sum(old, amount) {
        Ok(sum) => {
            wrong = None;
            sum.to_string().into_bytes()
        }
        Err(failure) => {
            wrong = Some(failure);
            old.map(<[u8]>::to_vec).unwrap_or_default()
        }
    })?;
    wrong.map_or(Ok(()), Err)
}

fn sum(old: Option<&[u8]>, amount: i64) -> Result<i64, Failure> {
    let stored = old.map_or(Ok(0), parse_number).map_err(in_store)?;
    stored.checked_add(amount).ok_or_else(|| Failure::new("the sum is too large for 64 bits"))
}

fn in_store(why: Failure) -> Failure {
    why.map(|why| format!("the value stored for the key: {why}"))
}

fn parse_number(text: &[u8]) -> Result<i64, Failure> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| {
        let start = &text[..text.len().min(40)];
        Failure::new(format!("`{}` is not a whole decimal number", String::from_utf8_lossy(start).escape_debug()))
    })
}

/// Ended between two rows. The number is what `--skip-rows` takes.
fn after(rows: u64, why: Failure) -> Failure {
    why.map(|why| format!("{why} (rows loaded: {rows})"))
}

fn in_file(args: &LoadArgs, why: Failure) -> Failure {
    why.map(|why| format!("{}: {why}", input::name(&args.file)))
}

/// A row cannot be read, and there is no store yet; what was done with those before it.
fn unread(args: &LoadArgs, line: u64, (done, rows): (&str, u64), why: Failure) -> Failure {
    if why.is_interrupt() {
        return after(args.skip_rows, why);
    }
    in_file(args, why.map(|why| format!("line {line}: {why} (rows {done} before it: {rows})")))
}

/// A failure, and where it came.
fn at_line(args: &LoadArgs, loaded: &Loaded, why: Failure) -> Failure {
    match loaded.failed_at_line {
        Some(line) => in_file(args, why.map(|why| format!("line {line}: {why}"))),
        None => why,
    }
}

fn report(args: &LoadArgs, loaded: &Loaded, seconds: f64, figures: Option<&Stats>) -> Outcome {
    let rows = loaded.rows_now();
    let (unit, number, bytes, rate) = (if rows == 1 { "row" } else { "rows" }, count(rows), size(loaded.bytes), rate(rows, seconds));
    out::line(format!("loaded {number} {unit}, {bytes} of keys and values, in {seconds:.2} s: {rate} rows/s"))?;
    match figures {
        Some(figures) if args.stats => {
            out::line("")?;
            out::line(stats::describe(&args.dir.display().to_string(), figures).trim_end())?;
        }
        Some(figures) if figures.index.shared => failure::say(&format!("esker: {}", stats::SHARED)),
        _ => {}
    }
    Ok(())
}
