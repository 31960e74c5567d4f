//! The processes that write: each asks the server, and waits for its reply.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use super::protocol::{Reply, Request};

/// A connection.
pub(crate) struct Client(UnixStream);

impl Client {
    /// To the server at this socket.
    pub(crate) fn connect(socket: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self(UnixStream::connect(socket)?))
    }

    /// The reply to a request.
    pub(crate) fn ask(&mut self, request: Request) -> io::Result<Reply> {
        // One that is refused a seat finds the connection closed, and the reason in it.
        let sent = request.write(&mut self.0);
        Reply::read(&mut self.0).map_err(|error| sent.err().unwrap_or(error))
    }

    /// The value in the reply, 0 for nothing. What others were quicker with is asked again.
    pub(crate) fn value(&mut self, request: Request) -> io::Result<u64> {
        loop {
            match self.ask(request)? {
                Reply::Value(value) => return Ok(value),
                Reply::Nothing => return Ok(0),
                Reply::Conflict => {}
                Reply::Refused(words) => return Err(io::Error::new(io::ErrorKind::PermissionDenied, words)),
            }
        }
    }
}

/// `get SOCKET KEY`, `put SOCKET KEY VALUE`, `sum SOCKET END`, `transfer SOCKET ACCOUNTS TALLY FILE`.
pub(crate) fn run(words: &[&str]) -> Result<String, Box<dyn Error>> {
    let request = match words {
        ["transfer", socket, accounts, tally, file] => return transfer(socket, accounts.parse()?, tally.parse()?, file),
        ["get", _, key] => Request::Get { key: key.parse()? },
        ["put", _, key, value] => Request::Put { key: key.parse()?, value: value.parse()? },
        ["sum", _, end] => Request::Sum { end: end.parse()? },
        _ => return Err("get SOCKET KEY, put SOCKET KEY VALUE, sum SOCKET END, transfer SOCKET ACCOUNTS TALLY FILE".into()),
    };
    Ok(Client::connect(words[1])?.value(request)?.to_string())
}

/// Moves money between accounts until the standard input ends. How often is counted by the server, in `tally`, and here, in `file`, which
/// is written behind each reply: killed at any moment, it tells how many were acknowledged.
fn transfer(socket: &str, accounts: u64, tally: u64, file: &str) -> Result<String, Box<dyn Error>> {
    let file = File::create(file)?;
    let (stop, mut random) = (end_of_input(), tally);
    let mut client = take_a_seat(socket)?;
    let mut done = 0;
    while stop.try_recv() == Err(TryRecvError::Empty) {
        let (from, to) = (next(&mut random) % accounts, next(&mut random) % accounts);
        done = client.value(Request::Transfer { from, to, amount: 1 + next(&mut random) % 10, tally })?;
        file.write_all_at(&done.to_le_bytes(), 0)?;
    }
    Ok(format!("{done} transfers"))
}

/// Waits for a seat: one is free when the server has noticed that somebody is gone. Without a server there is nothing to connect to.
fn take_a_seat(socket: &str) -> io::Result<Client> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, PermissionDenied};
    loop {
        let mut client = Client::connect(socket)?;
        match client.value(Request::Get { key: 0 }) {
            Err(error) if matches!(error.kind(), PermissionDenied | BrokenPipe | ConnectionReset) => {
                thread::sleep(Duration::from_millis(1))
            }
            seated => return seated.map(|_| client),
        }
    }
}

/// Disconnected at the end of the standard input.
fn end_of_input() -> Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // An input that cannot be read has ended, too.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        drop(sender);
    });
    receiver
}

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
