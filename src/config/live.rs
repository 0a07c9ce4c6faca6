//! The configuration in force, which a reload replaces whole: readers see the one before or the one
//! after, never a mixture.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};

use super::Config;
use super::load::Loaded;
use super::reload::Told;

/// The configuration in force. Clones are the same one.
#[derive(Clone)]
pub struct Live(Arc<Swapped>);

struct Swapped {
    config: ArcSwap<Config>,
    told: ArcSwap<Told>,
}

impl Live {
    /// In force from the start.
    pub fn new(loaded: Loaded) -> Self {
        let told = Told::at_start(loaded.settings, loaded.notes);
        Self(Arc::new(Swapped {
            config: ArcSwap::from_pointee(loaded.config),
            told: ArcSwap::from_pointee(told),
        }))
    }

    /// The present one, for a look: costs no more than two atomic operations. Whoever needs it for
    /// longer than a few steps takes [`Live::hold`].
    pub fn get(&self) -> Guard<Arc<Config>> {
        self.0.config.load()
    }

    /// The present one, to keep: an exchange goes on with the clocks that it began with.
    pub fn hold(&self) -> Arc<Config> {
        self.0.config.load_full()
    }

    /// What an operator may see of it.
    pub fn told(&self) -> Arc<Told> {
        self.0.told.load_full()
    }

    /// Replaces it. From here on every reader sees the new one.
    pub(super) fn replace(&self, config: Config, told: Told) {
        self.0.config.store(Arc::new(config));
        self.tell(told);
    }

    /// For tests of rooms: as if it had been loaded so.
    #[cfg(test)]
    pub(crate) fn change(&self, change: impl FnOnce(&mut Config)) {
        let mut config = (*self.hold()).clone();
        change(&mut config);
        self.replace(config, (*self.told()).clone());
    }

    /// Replaces only what an operator sees.
    pub(super) fn tell(&self, told: Told) {
        self.0.told.store(Arc::new(told));
    }
}

/// A configuration that did not come from layers.
impl From<Config> for Live {
    fn from(config: Config) -> Self {
        Self::new(Loaded {
            config,
            settings: Vec::new(),
            notes: Vec::new(),
        })
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Live").field(&self.get()).finish()
    }
}

/// What follows from the configuration and is costly to work out: made once for each that is in
/// force, by whoever asks first.
pub struct Derived<T> {
    live: Live,
    /// Makes it; given the one before, whose state may live on.
    make: fn(&Config, Option<&T>) -> T,
    made: ArcSwap<Made<T>>,
    /// Held while it is made, so that one makes it and state is not lost.
    making: Mutex<()>,
}

/// The value, and of which configuration. That one is kept alive, so its address is not used again.
struct Made<T> {
    of: Arc<Config>,
    value: T,
}

/// The value of the present configuration, for a look.
pub struct Present<T>(Guard<Arc<Made<T>>>);

impl<T> Deref for Present<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Derived<T> {
    /// Makes the first one.
    pub fn new(live: &Live, make: fn(&Config, Option<&T>) -> T) -> Self {
        let of = live.hold();
        let value = make(&of, None);
        Self {
            live: live.clone(),
            make,
            made: ArcSwap::from_pointee(Made { of, value }),
            making: Mutex::new(()),
        }
    }

    /// That of the present configuration.
    pub fn get(&self) -> Present<T> {
        let made = self.made.load();
        if Arc::ptr_eq(&made.of, &self.live.get()) {
            return Present(made);
        }
        self.renew()
    }

    #[cold]
    fn renew(&self) -> Present<T> {
        let _one_makes_it = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.made.load();
        let of = self.live.hold();
        if !Arc::ptr_eq(&before.of, &of) {
            let value = (self.make)(&of, Some(&before.value));
            self.made.store(Arc::new(Made { of, value }));
        }
        Present(self.made.load())
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::DEFAULT;
    use super::*;

    fn config(burst: u32) -> Config {
        let mut config: Config = toml::from_str(DEFAULT).unwrap();
        config.rate.caller_burst = burst;
        config
    }

    #[test]
    fn what_is_held_stays_and_what_is_asked_for_is_new() {
        let live = Live::from(config(1));
        let (held, other) = (live.hold(), live.clone());
        other.replace(config(2), (*live.told()).clone());
        assert_eq!(held.rate.caller_burst, 1);
        assert_eq!(live.get().rate.caller_burst, 2);
    }

    #[test]
    fn what_is_derived_is_made_once_for_each_configuration() {
        let live = Live::from(config(1));
        // The second number counts how often it was made.
        let derived: Derived<(u32, u32)> = Derived::new(&live, |config, before| {
            (config.rate.caller_burst, before.map_or(0, |b| b.1) + 1)
        });
        assert_eq!(*derived.get(), (1, 1));
        live.replace(config(5), (*live.told()).clone());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(*derived.get(), (5, 2)));
            }
        });
    }
}
