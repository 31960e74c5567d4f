//! A directory for one test and a way to run `esker` in it.

#![allow(dead_code)] // Every test program compiles this file, and not every one uses all of it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

/// What a run of the program left behind.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A directory that is gone after the test.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    pub(crate) fn write_gzip(&self, name: &str, content: &str) {
        let mut packer = GzEncoder::new(Vec::new(), Compression::default());
        packer.write_all(content.as_bytes()).unwrap();
        self.write(name, packer.finish().unwrap());
    }

    /// Runs `esker` with the arguments, which are split at spaces.
    pub(crate) fn run(&self, arguments: &str) -> Run {
        self.run_with(arguments.split(' '), "")
    }

    pub(crate) fn run_with(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>, input: &str) -> Run {
        let mut child = Command::new(env!("CARGO_BIN_EXE_esker"))
            .args(arguments)
            .current_dir(self.0.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A program that does not read its input may be gone before it is written.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        Run::from(child.wait_with_output().unwrap())
    }

    /// Runs `esker`, whose standard output nobody reads.
    pub(crate) fn run_unread(&self, arguments: &str) -> Run {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Run::from(esker(self, arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap())
    }

    /// Runs `esker`, which must succeed, and gives its standard output.
    #[track_caller]
    pub(crate) fn ok(&self, arguments: &str) -> String {
        let run = self.run(arguments);
        assert_eq!(run.code, 0, "{arguments}: {run:?}");
        assert_eq!(run.stderr, "", "{arguments}");
        run.stdout
    }

    /// The same, where it tells of something in one line besides.
    #[track_caller]
    pub(crate) fn ok_telling(&self, arguments: &str, message: &str) -> String {
        let run = self.run(arguments);
        assert_eq!(run.code, 0, "{arguments}: {run:?}");
        assert!(run.stderr.contains(message) && run.stderr.lines().count() == 1, "{arguments}: {run:?}");
        run.stdout
    }

    /// Runs `esker`, which must fail with exit code 1 and one line that contains `message`.
    #[track_caller]
    pub(crate) fn fails(&self, arguments: &str, message: &str) {
        self.run(arguments).must_fail(message);
    }
}

impl Run {
    #[track_caller]
    pub(crate) fn must_fail(&self, message: &str) {
        self.must_end(1, message);
    }

    #[track_caller]
    pub(crate) fn must_be_interrupted(&self, message: &str) {
        self.must_end(130, message);
    }

    #[track_caller]
    fn must_end(&self, code: i32, message: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.stderr.starts_with("esker: "), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.contains(message), "{message:?} is not in {self:?}");
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// `esker` with the arguments, which are split at spaces, to be run in a place. It hears signals, whoever started the tests.
pub(crate) fn esker(place: &Place, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esker"));
    command.args(arguments.split(' ')).current_dir(place.path("."));
    answer_signals(&mut command, libc::SIG_DFL);
    command
}

/// What becomes of interrupts when the program begins.
pub(crate) fn answer_signals(command: &mut Command, answer: libc::sighandler_t) {
    let set = move || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: nothing of ours handles it, and between fork and exec it may be called.
            unsafe { libc::signal(signal, answer) };
        }
        Ok(())
    };
    // SAFETY: it allocates nothing and takes no lock.
    unsafe { command.pre_exec(set) };
}

/// Signals the program: `-TERM`, say.
pub(crate) fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// What the program left behind, which must end by itself before long.
pub(crate) fn end(mut child: Child) -> Run {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            panic!("it goes on");
        }
        sleep(Duration::from_millis(5));
    }
    Run::from(child.wait_with_output().unwrap())
}

/// A terminal, by its two ends: what a program that has the second one shows there is read from the first.
pub(crate) fn terminal() -> (File, OwnedFd) {
    let (mut ours, mut theirs) = (0, 0);
    // A width: there is none else, and nothing is drawn.
    let size = libc::winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: both numbers are ours to be written; no name and no settings are asked for.
    let opened = unsafe { libc::openpty(&raw mut ours, &raw mut theirs, std::ptr::null_mut(), std::ptr::null(), &raw const size) };
    assert_eq!(opened, 0, "{}", io::Error::last_os_error());
    // SAFETY: just opened, and nobody else's.
    unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

/// Runs the program, which has a terminal whose other end this is; what it showed there, and what else it left behind.
pub(crate) fn show(mut command: Command, mut terminal: File) -> (String, Output) {
    // One that can do nothing shows nothing.
    let child = command.env("TERM", "xterm").spawn().unwrap();
    // It has the terminal, too.
    drop(command);
    let mut shown = Vec::new();
    // An error once the program has ended, and nobody has the terminal any more.
    let _ = terminal.read_to_end(&mut shown);
    (String::from_utf8_lossy(&shown).into_owned(), child.wait_with_output().unwrap())
}

/// The lines, in order.
pub(crate) fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Copies the files of a directory to a new one.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// `ESKER_SEED`, which is drawn and told if it is not said, and `ESKER_KILLS`.
pub(crate) fn seed_and_kills() -> (u64, u64) {
    let from_environment = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    let seed = from_environment("ESKER_SEED").unwrap_or_else(clock);
    println!("ESKER_SEED={seed}");
    (seed, from_environment("ESKER_KILLS").unwrap_or(20))
}

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % end
    }
}
