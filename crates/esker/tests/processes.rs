//! 48 processes write through one server (`examples/socket_server`), some are killed, and nothing is lost or torn.
//!
//! The processes are this very test program, started again as the example (`the_program`): so they are always built, and of this code.
//! A client moves money between accounts for as long as it lives. Each transfer is one transaction that also counts itself under a key
//! of the client's own, and the client writes down the count of each reply; so whatever happens
//! * the sum of all accounts stays what it was, at any moment, and
//! * a client's count in the store is what it wrote down, or one more if it was killed before it could.
//!
//! Nothing here depends on how fast anything is: who is killed is at work, because clients only stop when told to, and has done so many
//! transfers, because that was waited for. `ESKER_KILLS` says how many clients are killed (24 at a time, and 24 new ones follow).

#![cfg(unix)]
#![allow(missing_docs)]

#[path = "../examples/socket_server/client.rs"]
mod client;
#[path = "../examples/socket_server/protocol.rs"]
mod protocol;
#[path = "../examples/socket_server/server.rs"]
mod server;

use client::Client;
use esker::{Options, Store};
use protocol::{Reply, Request};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Writers at a time.
const WRITERS: u64 = 48;
const START: u64 = 1000;
/// Clients count their transfers under keys from here on.
const TALLIES: u64 = 1 << 32;
/// Transfers that each client makes before something is done to it, and after.
const TRANSFERS: u64 = 10;
/// Nothing here takes so long; what does hangs.
const PATIENCE: Duration = Duration::from_secs(120);

// ---- processes -------------------------------------------------------------------------------------------------------

#[test]
#[ignore = "no test: the program that the others start"]
fn the_program() {
    let Ok(words) = std::env::var("ESKER_PROGRAM") else { return };
    let words: Vec<&str> = words.split('\n').collect();
    let done = if words[0] == "serve" { server::run(&words[1..]) } else { client::run(&words) };
    if let Err(error) = done {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// A process that ends with its owner.
struct Process(Child);

impl Process {
    fn start(words: &[&str]) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command.args(["--exact", "the_program", "--ignored", "--nocapture"]).env("ESKER_PROGRAM", words.join("\n"));
        Self(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Ends its input, which stops it; what it said of errors, if it failed.
    fn stop(mut self) -> Result<(), String> {
        drop(self.0.stdin.take());
        self.wait()
    }

    fn wait(&mut self) -> Result<(), String> {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        if self.0.wait().unwrap().success() { Ok(()) } else { Err(said) }
    }

    /// SIGKILL.
    fn kill(mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "it has ended before it was killed: {:?}", self.wait());
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that was waited for is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "hangs: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

// ---- a bank ----------------------------------------------------------------------------------------------------------

/// A directory with a store, its server, and a connection to it.
struct Bank {
    place: TempDir,
    server: Process,
    teller: Client,
    accounts: u64,
}

/// A process that makes transfers.
struct Writer {
    process: Process,
    number: u64,
}

fn path(place: &TempDir, name: &str) -> String {
    place.path().join(name).to_str().unwrap().to_owned()
}

/// A server, and the first connection to it: with the one seat more.
fn serve(place: &TempDir, durability: &str) -> (Process, Client) {
    let (socket, seats) = (path(place, "socket"), (WRITERS + 1).to_string());
    let mut server = Process::start(&["serve", &path(place, "store"), &socket, durability, &seats]);
    let mut teller = None;
    wait_until("the server starts", || {
        assert!(server.0.try_wait().unwrap().is_none(), "the server ended: {:?}", server.wait());
        // There is no socket yet, or one that a killed server left.
        let connected = Client::connect(&socket).and_then(|mut client| client.value(Request::Get { key: 0 }).map(|_| client));
        teller = connected.ok();
        teller.is_some()
    });
    (server, teller.unwrap())
}

impl Bank {
    fn open(accounts: u64, durability: &str) -> Self {
        let place = TempDir::new().unwrap();
        let (server, teller) = serve(&place, durability);
        let mut bank = Self { place, server, teller, accounts };
        for key in 0..accounts {
            bank.teller.value(Request::Put { key, value: START }).unwrap();
        }
        bank
    }

    fn writers(&self, numbers: std::ops::Range<u64>) -> Vec<Writer> {
        let start = |number: u64| {
            let (tally, accounts) = ((TALLIES + number).to_string(), self.accounts.to_string());
            let words = ["transfer", &path(&self.place, "socket"), &accounts, &tally, &path(&self.place, &format!("writer {number}"))];
            Writer { process: Process::start(&words), number }
        };
        numbers.map(start).collect()
    }

    /// Transfers of a writer that took place.
    fn done(&mut self, number: u64) -> u64 {
        self.teller.value(Request::Get { key: TALLIES + number }).unwrap()
    }

    /// Waits until each of these has made some transfers more, and looks at the sum meanwhile.
    fn wait_for_transfers(&mut self, writers: &mut [Writer]) {
        let before: Vec<u64> = writers.iter().map(|writer| self.done(writer.number)).collect();
        for (writer, before) in writers.iter_mut().zip(before) {
            wait_until("a writer goes on", || {
                let ended = writer.process.0.try_wait().unwrap();
                assert!(ended.is_none(), "a writer ended: {:?}", writer.process.wait());
                self.done(writer.number) >= before + TRANSFERS
            });
            self.check_sum();
        }
    }

    fn check_sum(&mut self) {
        let sum = self.teller.value(Request::Sum { end: self.accounts }).unwrap();
        assert_eq!(sum, self.accounts * START, "as of one moment");
    }

    /// What a writer wrote down of its transfers, and what the store has of them.
    fn compare(&mut self, number: u64, was_killed: bool) {
        let file: PathBuf = self.place.path().join(format!("writer {number}"));
        let written = u64::from_le_bytes(std::fs::read(file).unwrap().try_into().unwrap());
        let (done, most) = (self.done(number), written + u64::from(was_killed));
        assert!((written..=most).contains(&done), "writer {number}: {written} acknowledged, {done} done");
    }
}

fn kills() -> u64 {
    std::env::var("ESKER_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(WRITERS / 2)
}

/// Writers, half of which are killed, and others take their places, as often as asked for.
fn writers_may_die(accounts: u64) {
    let mut bank = Bank::open(accounts, "none");
    let mut writers = bank.writers(0..WRITERS);
    bank.wait_for_transfers(&mut writers);
    refuses_one_more(&bank);
    refuses_another_server(&bank);
    ignores_half_a_request(&mut bank, &mut writers);
    let (mut next, rounds) = (WRITERS, kills().div_ceil(WRITERS / 2));
    for _ in 0..rounds {
        let victims: Vec<Writer> = writers.drain(..WRITERS as usize / 2).collect();
        let numbers: Vec<u64> = victims.iter().map(|writer| writer.number).collect();
        victims.into_iter().for_each(|writer| writer.process.kill());
        let begun = Instant::now();
        bank.wait_for_transfers(&mut writers);
        println!("{accounts} accounts: {TRANSFERS} transfers of each survivor later, {:?}", begun.elapsed());
        numbers.into_iter().for_each(|number| bank.compare(number, true));
        writers.extend(bank.writers(next..next + WRITERS / 2));
        next += WRITERS / 2;
        bank.wait_for_transfers(&mut writers);
    }
    for Writer { process, number } in writers {
        process.stop().unwrap();
        bank.compare(number, false);
    }
    bank.check_sum();
    let tallies: Vec<u64> = (0..next).map(|number| bank.done(number)).collect();
    closes_with_all_of_it(bank, &tallies);
}

/// All seats are taken: who comes is told so.
fn refuses_one_more(bank: &Bank) {
    let mut one_more = Client::connect(path(&bank.place, "socket")).unwrap();
    let told = one_more.ask(Request::Put { key: 0, value: 1 });
    // Told before it asked, or found the connection closed when it did.
    match told {
        Ok(Reply::Refused(words)) => assert_eq!(words, "all 49 seats are taken"),
        Ok(reply) => panic!("it has a seat: {reply:?}"),
        Err(error) => assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}"),
    }
}

fn refuses_another_server(bank: &Bank) {
    let words = ["serve", &path(&bank.place, "store"), &path(&bank.place, "another socket"), "none", "1"];
    let said = Process::start(&words).wait().unwrap_err();
    assert!(said.contains("locked: open in this or another process"), "{said}");
    assert!(!bank.place.path().join("another socket").exists());
}

/// A client that dies within a request has not made it; nor is there any harm in one that talks nonsense.
fn ignores_half_a_request(bank: &mut Bank, writers: &mut Vec<Writer>) {
    let socket = path(&bank.place, "socket");
    let mut whole = Vec::new();
    Request::Transfer { from: 0, to: 1, amount: 1, tally: TALLIES - 1 }.write(&mut whole).unwrap();
    let nonsense: [&[u8]; 5] = [&whole[..whole.len() - 1], &[1], &[255; 64], &[1, 0, 0, 0, 99], &[0; 4]];
    // Each wants a seat.
    let leaver = writers.pop().unwrap();
    leaver.process.stop().unwrap();
    bank.compare(leaver.number, false);
    for bytes in nonsense {
        wait_until("a seat is free", || {
            let mut stream = UnixStream::connect(&socket).unwrap();
            // Seated ones are served; the others read that they are not.
            let asked = (Request::Get { key: 0 }).write(&mut stream);
            if asked.is_err() || !matches!(Reply::read(&mut stream), Ok(Reply::Value(_))) {
                return false;
            }
            stream.write_all(bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // The server closes, perhaps without reading all, and says nothing.
            let mut rest = Vec::new();
            let end = stream.read_to_end(&mut rest).map_err(|error| error.kind());
            assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{bytes:?}: {end:?}, {rest:?}");
            true
        });
    }
    assert_eq!(bank.teller.ask(Request::Get { key: TALLIES - 1 }).unwrap(), Reply::Nothing);
    writers.extend(bank.writers(leaver.number..leaver.number + 1));
}

/// A server that is told to stop closes its store, and all is there.
fn closes_with_all_of_it(bank: Bank, tallies: &[u64]) {
    let Bank { place, server, teller, accounts } = bank;
    server.stop().unwrap();
    drop(teller);
    let store: Store<u64, u64> = Options::new().memory("16MiB").open(place.path().join("store")).unwrap();
    let value = |key: u64| store.get(&key).unwrap().unwrap_or(0);
    assert_eq!((0..accounts).map(value).sum::<u64>(), accounts * START);
    assert_eq!((0..tallies.len() as u64).map(|number| value(TALLIES + number)).collect::<Vec<_>>(), tallies);
}

// ---- tests -----------------------------------------------------------------------------------------------------------

#[test]
fn writers_may_die_on_4_accounts() {
    writers_may_die(4);
}

#[test]
fn writers_may_die_on_1000_accounts() {
    writers_may_die(1000);
}

#[test]
fn a_killed_server_has_kept_what_it_acknowledged() {
    let mut bank = Bank::open(100, "always");
    for round in 0..2 {
        let numbers = round * 8..(round + 1) * 8;
        let mut writers = bank.writers(numbers.clone());
        bank.wait_for_transfers(&mut writers);
        bank.server.kill();
        // Their server is gone, and they say so.
        writers.iter_mut().for_each(|writer| assert!(writer.process.wait().is_err()));
        (bank.server, bank.teller) = serve(&bank.place, "always");
        bank.check_sum();
        numbers.for_each(|number| bank.compare(number, true));
    }
}

#[test]
fn a_server_takes_the_place_of_a_socket_only() {
    let place = tempfile::tempdir().unwrap();
    let (store, socket) = (path(&place, "store"), path(&place, "precious"));
    std::fs::write(&socket, "precious").unwrap();
    let said = Process::start(&["serve", &store, &socket, "none", "1"]).wait().unwrap_err();
    assert!(said.contains("no socket"), "{said}");
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "precious");
}
