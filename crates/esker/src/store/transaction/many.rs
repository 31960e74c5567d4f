//! Reads of many keys in a transaction, as those of [`Store::get_many`](crate::Store::get_many): what is on the device is read together.

use super::super::cold::Cold;
use super::super::step::{Known, Step};
use super::super::waiting::{Waits, brought_here};
use super::Transaction;
use crate::epoch::Counter;
use crate::error::Result;
use crate::types::{Key, Value};
use std::borrow::Borrow;

impl<K: Key + ?Sized, V: Value + ?Sized> Transaction<'_, K, V> {
    /// The values of many keys, each as [`Transaction::get`] gives it; their device reads overlap. `visit(i, value)` is called once for
    /// each key, in any order, outside the store.
    ///
    /// # Errors
    /// As [`Transaction::get`], the first one met; some keys may not have been visited then.
    ///
    /// # Cost
    /// As that of [`Store::get_many`](crate::Store::get_many), and that of [`Transaction::get`] for each key. The values that are read from
    /// the device are held until all have been.
    ///
    /// # Examples
    /// ```
    /// use esker::{Options, Store};
    ///
    /// let accounts: Store<str, u64> = Options::new().memory("16MiB").in_memory()?;
    /// accounts.put_many(&[("ada", 70), ("ben", 30)])?;
    /// let all = accounts.transaction(|tx| {
    ///     let mut all = 0;
    ///     tx.get_many(&["ada", "ben", "eve"], |_, money| all += money.unwrap_or(0))?;
    ///     tx.put("all", &all)?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(all, 100);
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn get_many<Q: Borrow<K>>(&mut self, keys: &[Q], visit: impl FnMut(usize, Option<V::View<'_>>)) -> Result<()> {
        brought_here(self.get_many_by(Waits::Here, keys, visit))
    }

    /// The values of many keys; as [`Transaction::get_many`], without waiting here for device, room or lines.
    ///
    /// # Errors
    /// As [`Transaction::get_many`]. `Closed` also when the store is closed while the future waits.
    pub async fn get_many_async<Q: Borrow<K>>(&mut self, keys: &[Q], visit: impl FnMut(usize, Option<V::View<'_>>)) -> Result<()> {
        self.get_many_by(Waits::Later, keys, visit).await
    }

    async fn get_many_by<Q: Borrow<K>>(
        &mut self,
        waits: Waits,
        keys: &[Q],
        mut visit: impl FnMut(usize, Option<V::View<'_>>),
    ) -> Result<()> {
        let store = self.store;
        let places = keys.iter().map(|key| self.touch(key.borrow())).collect::<Result<Vec<_>>>()?;
        let mut reads = Reads { transaction: self, places, buffer: Vec::new(), cold: Vec::new() };
        let group = |first: usize, part: &[Q], reads: &mut Reads<'_, '_, K, V>, cold: &mut Cold| {
            let group = store.fetch_group(part.iter().map(|key| key.borrow().bytes()));
            for (number, hash) in (first..).zip(group.hashes).take(part.len()) {
                reads.read_at_once(number, hash, &mut visit, cold)?;
            }
            Ok(0)
        };
        let attempt = |number, hash, known: &Known, reads: &mut Reads<'_, '_, K, V>| reads.attempt(number, hash, known);
        store.change_many(waits, keys, |key| key.borrow().bytes(), &mut reads, group, attempt).await?;
        // Not by who reads from the device: a caller may do so himself.
        reads.cold.iter().for_each(|(number, value)| visit(*number, value.as_deref().map(V::view)));
        Ok(())
    }
}

/// Reads of some keys.
struct Reads<'t, 's, K: Key + ?Sized, V: Value + ?Sized> {
    transaction: &'t mut Transaction<'s, K, V>,
    /// Of each key among those touched.
    places: Vec<usize>,
    buffer: Vec<u8>,
    /// What was read from the device, by numbers.
    cold: Vec<(usize, Option<Vec<u8>>)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Reads<'_, '_, K, V> {
    /// Shows what the transaction or memory has; else the key waits.
    fn read_at_once(
        &mut self,
        number: usize,
        hash: u64,
        visit: &mut impl FnMut(usize, Option<V::View<'_>>),
        cold: &mut Cold,
    ) -> Result<()> {
        let (store, place) = (self.transaction.store, self.places[number]);
        let touched = &self.transaction.touched[place];
        if let Some(write) = &touched.write {
            visit(number, write.bytes(|| store.engine.expiry.now()).map(V::view));
            return Ok(());
        }
        store.count(Counter::Get)?;
        if cold.puts_off(number, hash) {
            return Ok(());
        }
        let buffer = &mut self.buffer;
        let read = cold.attempt(store, number, hash, |known| store.witness_step(touched.key(), hash, known, buffer))?;
        if let Some((now, is_there)) = read {
            self.transaction.note(place, now)?;
            visit(number, is_there.then(|| V::view(&self.buffer)));
        }
        Ok(())
    }

    fn attempt(&mut self, number: usize, hash: u64, known: &Known) -> Result<Step<bool>> {
        let (store, place) = (self.transaction.store, self.places[number]);
        let step = store.witness_step(self.transaction.touched[place].key(), hash, known, &mut self.buffer)?;
        if let Step::Done((now, is_there)) = step {
            self.transaction.note(place, now)?;
            self.cold.push((number, is_there.then(|| std::mem::take(&mut self.buffer))));
            return Ok(Step::Done(is_there));
        }
        Ok(step.then(|| false))
    }
}
