//! The configuration in force. A reload replaces it atomically: readers see the old or the new one,
//! never a mixture.

use std::ops::Deref;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::Config;
use super::load::LoadedConfig;
use super::reload::ConfigView;

/// The configuration in force. Clones share it.
#[derive(Clone, Debug)]
pub struct Live(Arc<LiveState>);

#[derive(Debug)]
struct LiveState {
    config: ArcSwap<Config>,
    view: ArcSwap<ConfigView>,
}

impl Live {
    /// Creates the configuration in force from the one loaded at the start.
    pub fn new(loaded: LoadedConfig) -> Self {
        let view = ConfigView::at_start(loaded.settings, loaded.notes);
        Self(Arc::new(LiveState {
            config: ArcSwap::from_pointee(loaded.config),
            view: ArcSwap::from_pointee(view),
        }))
    }

    /// Returns the current configuration for brief use, at the cost of two atomic operations. Use
    /// [`Live::snapshot`] to keep it for longer than a few steps.
    pub fn get(&self) -> Guard<Arc<Config>> {
        self.0.config.load()
    }

    /// Returns the current configuration as an [`Arc`] to keep: an exchange keeps the timeouts with
    /// which it began.
    pub fn snapshot(&self) -> Arc<Config> {
        self.0.config.load_full()
    }

    /// Returns the view of the configuration for operators.
    pub fn view(&self) -> Arc<ConfigView> {
        self.0.view.load_full()
    }

    /// Replaces the configuration, but not the view for operators. All later reads return the new one.
    pub(super) fn replace(&self, config: Config) {
        self.0.config.store(Arc::new(config));
    }

    /// Changes the configuration in tests, as a reload would.
    #[cfg(any(test, feature = "testing"))]
    pub fn change(&self, change: impl FnOnce(&mut Config)) {
        let mut config = (*self.snapshot()).clone();
        change(&mut config);
        self.replace(config);
    }

    /// Replaces the view for operators.
    pub fn set_view(&self, view: ConfigView) {
        self.0.view.store(Arc::new(view));
    }
}

/// Wraps a configuration that did not come from layers.
impl From<Config> for Live {
    fn from(config: Config) -> Self {
        Self::new(LoadedConfig {
            config,
            settings: Vec::new(),
            notes: Vec::new(),
        })
    }
}

/// A value derived from the configuration that is costly to compute. The first reader after a
/// reload computes it, once per configuration.
pub struct Derived<T> {
    live: Live,
    /// Computes the value. Gets the previous value, from which it may take over state.
    make: fn(&Config, Option<&T>) -> T,
    made: ArcSwap<DerivedValue<T>>,
    /// Held during the computation, so that it runs once and no state is lost.
    making: Mutex<()>,
}

/// The value and its configuration. Holding the configuration keeps its address from being reused.
struct DerivedValue<T> {
    of: Arc<Config>,
    value: T,
}

/// The value of the current configuration, for brief use.
pub struct DerivedGuard<T>(Guard<Arc<DerivedValue<T>>>);

impl<T> Deref for DerivedGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Derived<T> {
    /// Computes the first value.
    pub fn new(live: &Live, make: fn(&Config, Option<&T>) -> T) -> Self {
        let of = live.snapshot();
        let value = make(&of, None);
        Self {
            live: live.clone(),
            make,
            made: ArcSwap::from_pointee(DerivedValue { of, value }),
            making: Mutex::new(()),
        }
    }

    /// Returns the value of the current configuration.
    pub fn get(&self) -> DerivedGuard<T> {
        let made = self.made.load();
        if Arc::ptr_eq(&made.of, &self.live.get()) {
            return DerivedGuard(made);
        }
        self.recompute()
    }

    #[cold]
    fn recompute(&self) -> DerivedGuard<T> {
        let _one_makes_it = self.making.lock();
        let before = self.made.load();
        let of = self.live.snapshot();
        if !Arc::ptr_eq(&before.of, &of) {
            let value = (self.make)(&of, Some(&before.value));
            self.made.store(Arc::new(DerivedValue { of, value }));
        }
        DerivedGuard(self.made.load())
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
        let (held, other) = (live.snapshot(), live.clone());
        other.replace(config(2));
        assert_eq!(held.rate.caller_burst, 1);
        assert_eq!(live.get().rate.caller_burst, 2);
    }

    #[test]
    fn what_is_derived_is_made_once_for_each_configuration() {
        let live = Live::from(config(1));
        // The second number counts the computations.
        let derived: Derived<(u32, u32)> = Derived::new(&live, |config, before| {
            (config.rate.caller_burst, before.map_or(0, |b| b.1) + 1)
        });
        assert_eq!(*derived.get(), (1, 1));
        live.replace(config(5));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(*derived.get(), (5, 2)));
            }
        });
    }
}
