//! The process that has the store: a thread for each connection, which carries out one request after the other.
//!
//! It serves until its standard input ends, so that it does not outlive whoever started it with a pipe; then it closes the store. There
//! are so many seats; a connection beyond them is told so and closed. A seat is free again when its connection ends, however it does.

use std::error::Error;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use esker::{Durability, Options, Store};

use super::protocol::{Reply, Request};

/// Before the next try to accept, when one failed.
const PAUSE: Duration = Duration::from_millis(50);

/// `serve DIRECTORY SOCKET none|always SEATS`.
pub(crate) fn run(words: &[&str]) -> Result<String, Box<dyn Error>> {
    let &[directory, socket, durability, seats] = words else { return Err("serve DIRECTORY SOCKET none|always SEATS".into()) };
    let durability = match durability {
        "none" => Durability::None,
        "always" => Durability::Always,
        other => return Err(format!("durability is none or always, not {other}").into()),
    };
    let store: Store<u64, u64> = Options::new().memory("64MiB").durability(durability).open(directory)?;
    remove_left_socket(socket)?;
    let listener = UnixListener::bind(socket)?;
    let (served, seats) = (store.clone(), seats.parse()?);
    thread::Builder::new().spawn(move || accept(&served, &listener, seats))?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    store.close()?;
    std::fs::remove_file(socket)?;
    Ok("closed".into())
}

/// A socket at which nobody listens was left by a server that was killed.
fn remove_left_socket(path: &str) -> Result<(), Box<dyn Error>> {
    match std::fs::symlink_metadata(path) {
        Ok(about) if about.file_type().is_socket() => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(std::fs::remove_file(path)?),
            // Of another store, for this one's directory is ours.
            _ => Err(format!("{path} is another server's").into()),
        },
        Ok(_) => Err(format!("{path} is there, and no socket").into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn accept(store: &Store<u64, u64>, listener: &UnixListener, seats: usize) {
    // Every connection has a clone.
    let seat = Arc::new(());
    for connection in listener.incoming() {
        let Ok(mut connection) = connection else {
            // Too many files are open, say: those which are connected will end.
            thread::sleep(PAUSE);
            continue;
        };
        if Arc::strong_count(&seat) > seats {
            // A client that is gone already need not be told.
            let _ = Reply::Refused(format!("all {seats} seats are taken")).write(&mut connection);
            continue;
        }
        let (store, seat) = (store.clone(), seat.clone());
        // Without a thread the connection ends at once, and its client may try again.
        let _ = thread::Builder::new().spawn(move || {
            // That a client is gone is not worth a word; that it talks nonsense is.
            if let Err(error) = serve(&store, &mut connection)
                && error.kind() == io::ErrorKind::InvalidData
            {
                eprintln!("a connection ended: {error}");
            }
            drop(seat);
        });
    }
}

/// Until the client is gone. Half a request, or none, changes nothing.
fn serve(store: &Store<u64, u64>, connection: &mut (impl Read + io::Write)) -> io::Result<()> {
    while let Some(request) = Request::read(connection)? {
        let reply = match carry_out(store, request) {
            Ok(Some(value)) => Reply::Value(value),
            Ok(None) => Reply::Nothing,
            Err(esker::Error::Conflict { .. }) => Reply::Conflict,
            Err(error) => Reply::Refused(error.to_string()),
        };
        reply.write(connection)?;
    }
    Ok(())
}

fn carry_out(store: &Store<u64, u64>, request: Request) -> esker::Result<Option<u64>> {
    match request {
        Request::Get { key } => store.get(&key),
        Request::Put { key, value } => store.put(&key, &value).map(|()| Some(value)),
        Request::Transfer { from, to, amount, tally } => store
            .transaction(|tx| {
                let held = tx.get(&from)?.unwrap_or(0);
                let moved = amount.min(held);
                tx.put(&from, &(held - moved))?;
                tx.rmw(&to, |old| old.unwrap_or(0).wrapping_add(moved))?;
                tx.rmw(&tally, |old| old.unwrap_or(0).wrapping_add(1))
            })
            .map(Some),
        Request::Sum { end } => {
            let add = |sum: &mut u64, key: u64, value: u64| *sum = sum.wrapping_add(if key < end { value } else { 0 });
            store.scan().fold(|| 0u64, add, |sum, other| *sum = sum.wrapping_add(other)).map(Some)
        }
    }
}
