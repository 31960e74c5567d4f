//! The store under its judges, by judge: models, histories, a disk that misbehaves. One program: each would build the engine once more, for every layout.
//! Beside it stand tests that need a process of their own.

mod agrees_with_model;
mod crash_lane;
mod faults;
mod found_by_reading;
mod futures;
mod fuzz_corpora;
mod golden;
mod linearizable;
mod scans_agree_with_model;
mod serializable;
mod store_survives;
mod toy;
mod unreadable;
