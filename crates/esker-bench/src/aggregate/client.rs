//! The sum by a client that gets one object at a time.
//!
//! It talks through a pair of Unix sockets to a thread that answers from the store: a request of 36 bytes, a reply of eight more than
//! the value, the sizes of a `GET` in the Redis protocol. It gathers a part that way, for the time, and the rest directly, for the
//! sum.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use esker::Store;

use super::Answer;
use super::stores::Amount;

const REQUEST_BYTES: usize = 36;
const REPLY_FRAME_BYTES: usize = 8;

/// The time for all, from those that went through the socket, and the sum.
pub(super) fn sum<V: Amount + ?Sized>(store: &Store<u64, V>, listed: &[u64], through_socket: usize) -> Result<Answer> {
    let (sent, rest) = listed.split_at(listed.len().min(through_socket));
    let first = sent.first().context("nothing is asked for")?;
    let value_bytes = store.get(first)?.map_or(0, |value| std::borrow::Borrow::<V>::borrow(&value).bytes().len());
    let (client, server) = UnixStream::pair()?;
    let mut answer = std::thread::scope(|scope| -> Result<Answer> {
        let serving = scope.spawn(move || serve(store, server, value_bytes));
        let answer = Answer::time(|| gather(client, sent, value_bytes))?;
        serving.join().ok().context("the server failed")??;
        Ok(answer)
    })?;
    store.get_many(rest, |_, value| answer.sum += value.map_or(0, |value| i128::from(V::amount(value))))?;
    let scale = listed.len() as f64 / sent.len() as f64;
    Ok(Answer { seconds: answer.seconds * scale, busy: answer.busy * scale, ..answer })
}

/// Ends when the client hangs up.
fn serve<V: Amount + ?Sized>(store: &Store<u64, V>, mut server: UnixStream, value_bytes: usize) -> Result<()> {
    let mut request = [0; REQUEST_BYTES];
    let mut reply = vec![0; value_bytes + REPLY_FRAME_BYTES];
    while server.read_exact(&mut request).is_ok() {
        let key = u64::from_le_bytes(request[..8].try_into()?);
        let value = store.get(&key)?.context("a key is missing")?;
        reply[..value_bytes].copy_from_slice(std::borrow::Borrow::<V>::borrow(&value).bytes());
        server.write_all(&reply)?;
    }
    Ok(())
}

fn gather(mut client: UnixStream, keys: &[u64], value_bytes: usize) -> Result<i128> {
    let mut request = [0; REQUEST_BYTES];
    let mut reply = vec![0; value_bytes + REPLY_FRAME_BYTES];
    let mut sum = 0;
    for key in keys {
        request[..8].copy_from_slice(&key.to_le_bytes());
        client.write_all(&request)?;
        client.read_exact(&mut reply)?;
        sum += i128::from(u64::from_le_bytes(reply[..8].try_into()?));
    }
    Ok(sum)
}
