//! A store that many processes share: one of them has it open and serves it over a Unix socket.
//!
//! ```text
//! process -- connection -- thread --+
//! process -- connection -- thread --+-- Store<u64, u64> -- directory, locked: a second server is refused
//! process -- connection -- thread --+
//! ```
//! A process that dies, at any moment, closes its connection and nothing else: what it holds of the store is nothing, because a request
//! is whole before it is carried out, and is carried out whole whether or not anyone waits for the reply.
//!
//! ```sh
//! cargo run --release -p esker --example socket_server -- serve /tmp/bank /tmp/bank.socket always 48
//! cargo run --release -p esker --example socket_server -- put /tmp/bank.socket 1 100
//! cargo run --release -p esker --example socket_server -- transfer /tmp/bank.socket 4 1000000 /tmp/acknowledged
//! cargo run --release -p esker --example socket_server -- sum /tmp/bank.socket 4
//! ```

mod client;
mod protocol;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.split_first() {
        Some((&"serve", rest)) => server::run(rest),
        _ => client::run(&words),
    };
    match done {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
