//! The store as its users meet it, a file for each part of it: one program, for each builds what it uses of the engine's generic code anew.
//! What counts the files, threads or memory of a process, or is one of several, is a program of its own beside this directory; `forbidden`
//! runs this one once more.
//!
//! The address sanitizer takes as long to build them as to run them, and several times as long as others: it gets those among which all
//! files with unsafe code have their tests.

#[cfg(not(esker_sanitized))]
mod aggregate;
mod asynchronous;
#[cfg(not(esker_sanitized))]
mod bank;
#[cfg(not(esker_sanitized))]
mod cache;
#[cfg(not(esker_sanitized))]
mod conditional;
#[cfg(not(esker_sanitized))]
mod durable;
mod expiry;
#[cfg(not(esker_sanitized))]
mod forbidden;
mod helpers;
#[cfg(not(esker_sanitized))]
mod history;
#[cfg(not(esker_sanitized))]
mod holes;
mod operations;
#[cfg(not(esker_sanitized))]
mod promotion;
mod reading;
#[cfg(not(esker_sanitized))]
mod salvage;
mod scan;
#[cfg(not(esker_sanitized))]
mod space;
mod transactions;

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/minded.rs"]
mod minded;
#[path = "../common/raise.rs"]
mod raise;
#[path = "../common/random.rs"]
mod random;
#[path = "../common/traffic.rs"]
mod traffic;
