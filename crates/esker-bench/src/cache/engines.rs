//! The caches compared, behind one trait.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::requests::first_counted;

/// How large a cache and its values are.
#[derive(Clone, Copy)]
pub(super) struct Sized {
    pub(super) memory: u64,
    pub(super) value_bytes: usize,
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Name {
    /// Esker in cache mode: all that it takes keeps to the memory given.
    Esker,
    /// The same with as much memory as the keys and values need that the others count.
    EskerPayload,
    /// Moka: W-TinyLFU.
    #[cfg(feature = "peers")]
    Moka,
    /// Foyer with S3-FIFO.
    #[cfg(feature = "peers")]
    FoyerS3fifo,
    /// Foyer with w-TinyLFU.
    #[cfg(feature = "peers")]
    FoyerLfu,
    /// Foyer with LRU.
    #[cfg(feature = "peers")]
    FoyerLru,
}

impl Name {
    /// All of them.
    pub(super) fn all() -> Vec<Self> {
        <Self as clap::ValueEnum>::value_variants().to_vec()
    }

    /// The name in reports.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Esker => "esker",
            Self::EskerPayload => "esker, equal payload",
            #[cfg(feature = "peers")]
            Self::Moka => "moka",
            #[cfg(feature = "peers")]
            Self::FoyerS3fifo => "foyer s3-fifo",
            #[cfg(feature = "peers")]
            Self::FoyerLfu => "foyer lfu",
            #[cfg(feature = "peers")]
            Self::FoyerLru => "foyer lru",
        }
    }

    /// An empty cache.
    pub(super) fn open(self, sized: Sized) -> Result<Box<dyn Contestant>> {
        Ok(match self {
            Self::Esker => Box::new(Esker::open(sized.memory, sized.value_bytes)?),
            Self::EskerPayload => Box::new(Esker::open(Esker::memory_for(sized), sized.value_bytes)?),
            #[cfg(feature = "peers")]
            Self::Moka => Box::new(peers::Moka::open(sized)),
            #[cfg(feature = "peers")]
            Self::FoyerS3fifo => Box::new(peers::Foyer::open(sized, foyer::S3FifoConfig::default())),
            #[cfg(feature = "peers")]
            Self::FoyerLfu => Box::new(peers::Foyer::open(sized, foyer::LfuConfig::default())),
            #[cfg(feature = "peers")]
            Self::FoyerLru => Box::new(peers::Foyer::open(sized, foyer::LruConfig::default())),
        })
    }
}

/// A cache under measurement.
pub(super) trait Contestant: Sync {
    /// Answers requests.
    fn serve(&self, keys: &[u64]) -> Result<Served>;
    /// Bytes of the keys and values held.
    fn held_bytes(&self) -> u64;
}

/// What one thread's requests gave after the warm-up.
pub(super) struct Served {
    pub(super) hits: u64,
    pub(super) begun: Instant,
    pub(super) ended: Instant,
}

/// A cache of values that begin with their key.
trait Lookup {
    /// The first word of the value, if there is one.
    fn look(&self, key: u64) -> Result<Option<u64>>;
    fn put(&self, key: u64, value: &[u8]) -> Result<()>;
}

fn word(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("a value holds its key"))
}

fn serve<L: Lookup>(cache: &L, keys: &[u64], value_bytes: usize) -> Result<Served> {
    let mut value = vec![7; value_bytes];
    let (mut hits, mut begun, first) = (0, Instant::now(), first_counted(keys));
    for (number, &key) in keys.iter().enumerate() {
        if number == first {
            begun = Instant::now();
        }
        match cache.look(key)? {
            Some(found) => {
                ensure!(found == key, "the value of another key");
                hits += u64::from(number >= first);
            }
            None => {
                value[..8].copy_from_slice(&key.to_le_bytes());
                cache.put(key, &value)?;
            }
        }
    }
    Ok(Served { hits, begun, ended: Instant::now() })
}

struct Esker(esker::Store<u64, [u8]>, usize);

impl Esker {
    fn open(memory: u64, value_bytes: usize) -> Result<Self> {
        let options = esker::Options::new().memory(memory).cache(esker::Cache::new());
        Ok(Self(options.in_memory()?, value_bytes))
    }

    /// The budget for so many bytes of keys and values: a header and an index entry for each, buffers, and an eleventh that is kept
    /// free, by and large. What is held tells whether it was right.
    fn memory_for(sized: Sized) -> u64 {
        const HEADER_AND_ENTRY: u64 = 24 + 14;
        let pair = 8 + sized.value_bytes as u64;
        let taken = sized.memory as f64 * (pair + HEADER_AND_ENTRY) as f64 / pair as f64;
        (2 << 20) + (taken * 11.0 / 10.0) as u64
    }
}

impl Lookup for Esker {
    fn look(&self, key: u64) -> Result<Option<u64>> {
        Ok(self.0.get_with(&key, word)?)
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<()> {
        Ok(self.0.put(&key, value)?)
    }
}

impl Contestant for Esker {
    fn serve(&self, keys: &[u64]) -> Result<Served> {
        serve(self, keys, self.1)
    }

    fn held_bytes(&self) -> u64 {
        self.0.stats().index.entries * (8 + self.1 as u64)
    }
}

#[cfg(feature = "peers")]
mod peers {
    use super::{Contestant, Lookup, Result, Served, Sized, serve, word};
    use std::sync::Arc;

    const KEY_BYTES: usize = 8;

    /// Instead of their own, XXH64 and SipHash: nobody is to be slow for his hash.
    type Hasher = foldhash::fast::FixedState;

    pub(super) struct Moka(moka::sync::Cache<u64, Arc<[u8]>, Hasher>, usize);

    impl Moka {
        pub(super) fn open(sized: Sized) -> Self {
            let weigher = |_: &u64, value: &Arc<[u8]>| (KEY_BYTES + value.len()) as u32;
            let builder = moka::sync::Cache::builder().max_capacity(sized.memory).weigher(weigher);
            Self(builder.build_with_hasher(Hasher::default()), sized.value_bytes)
        }
    }

    impl Lookup for Moka {
        fn look(&self, key: u64) -> Result<Option<u64>> {
            Ok(self.0.get(&key).map(|value| word(&value)))
        }

        fn put(&self, key: u64, value: &[u8]) -> Result<()> {
            self.0.insert(key, value.into());
            Ok(())
        }
    }

    impl Contestant for Moka {
        fn serve(&self, keys: &[u64]) -> Result<Served> {
            serve(self, keys, self.1)
        }

        fn held_bytes(&self) -> u64 {
            self.0.run_pending_tasks();
            self.0.weighted_size()
        }
    }

    pub(super) struct Foyer(foyer::Cache<u64, Box<[u8]>, Hasher>, usize);

    impl Foyer {
        #[expect(clippy::borrowed_box, reason = "a weighter gets what the cache holds")]
        pub(super) fn open(sized: Sized, policy: impl Into<foyer::EvictionConfig>) -> Self {
            let builder = foyer::CacheBuilder::new(sized.memory as usize).with_eviction_config(policy).with_hash_builder(Hasher::default());
            Self(builder.with_weighter(|_: &u64, value: &Box<[u8]>| KEY_BYTES + value.len()).build(), sized.value_bytes)
        }
    }

    impl Lookup for Foyer {
        fn look(&self, key: u64) -> Result<Option<u64>> {
            Ok(self.0.get(&key).map(|entry| word(entry.value())))
        }

        fn put(&self, key: u64, value: &[u8]) -> Result<()> {
            self.0.insert(key, value.into());
            Ok(())
        }
    }

    impl Contestant for Foyer {
        fn serve(&self, keys: &[u64]) -> Result<Served> {
            serve(self, keys, self.1)
        }

        fn held_bytes(&self) -> u64 {
            self.0.usage() as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    /// Finds each key, the first hundred of them slowly.
    struct Slow(Cell<u32>);

    impl Lookup for Slow {
        fn look(&self, key: u64) -> Result<Option<u64>> {
            if self.0.replace(self.0.get() + 1) < 100 {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(Some(key))
        }

        fn put(&self, _: u64, _: &[u8]) -> Result<()> {
            unreachable!("each key is found")
        }
    }

    #[test]
    fn neither_hits_nor_time_of_the_warm_up_count() {
        let start = Instant::now();
        let served = serve(&Slow(Cell::new(0)), &[7; 400], 8).unwrap();
        assert_eq!(served.hits, 300);
        assert!(served.begun - start >= Duration::from_millis(100) && served.begun < served.ended);
    }
}
