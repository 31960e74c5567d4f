//! Simulation for Esker's own tests: a disk that misbehaves, a model that is obviously right, and a
//! judge of concurrent histories.
//!
//! The theory: a store is right when nobody can tell it from a map. [`model`] is that map with a
//! generator of operations, [`subject`] drives a real store of any layout with the same operations,
//! [`history`] tells whether what several threads saw could have come from one map, and [`disk`] is
//! the device under it all, which is slow, out of order and faulty on demand ([`unsteady`]: at random).
//! [`polling`] has futures as the unkindest executor may. [`fuzz`] takes its choices from a
//! fuzzer instead. Everything else random comes from a seed ([`seeds`]).

pub mod crash;
pub mod disk;
pub mod fuzz;
pub mod golden;
pub mod history;
pub mod model;
pub mod polling;
pub mod seeds;
pub mod storage;
pub mod subject;
pub mod unsteady;
