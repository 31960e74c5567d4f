//! What a store promises, by subject. One program: each would build the engine once more, for every layout that it uses. Beside it stand tests that need
//! a process of their own.

mod common;

mod aggregate;
mod asynchronous;
mod bank;
mod cache;
mod cold_batches;
mod conditional;
mod durable;
mod expiry;
mod helpers;
mod history;
mod operations;
mod promotion;
mod reading;
mod salvage;
mod scan;
mod space;
mod transactions;
