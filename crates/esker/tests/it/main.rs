//! The store as its users meet it, a file for each part of it: one program, for each builds what it uses of the engine's generic code anew.
//! What counts the files, threads or memory of a process, or is one of several, is a program of its own beside this directory; `forbidden`
//! runs this one once more.

mod aggregate;
mod asynchronous;
mod bank;
mod cache;
mod conditional;
mod durable;
mod expiry;
mod forbidden;
mod helpers;
mod history;
mod holes;
mod operations;
mod promotion;
mod reading;
mod salvage;
mod scan;
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
