//! Reload of the configuration: applies changed values, holds back those that need a restart, and
//! keeps the last valid configuration if the new one is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use secrecy::ExposeSecret;

use super::live::Live;
use super::load::{ADMIN_TOKEN, ConfigError, LoadedConfig, Problem, Setting, Source};
use super::{Config, check, restart};

/// The view of the configuration for operators.
#[derive(Clone, Debug)]
pub struct ConfigView {
    /// Every value in force and its source, in key order.
    pub settings: Vec<Setting>,
    /// Changed values that need a restart; `None`: the key was removed.
    pub waiting: BTreeMap<String, Option<Setting>>,
    /// Warnings about values that are allowed but probably not intended.
    pub notes: Vec<String>,
    /// Time since which the configuration is in force.
    pub loaded_at: SystemTime,
    /// The failure of the last reload, if it failed.
    pub failure: Option<Failure>,
}

/// A failed reload.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Time of the failure.
    pub at: SystemTime,
    /// All problems found.
    pub problems: Vec<Problem>,
}

impl ConfigView {
    pub(super) fn at_start(settings: Vec<Setting>, notes: Vec<String>) -> Self {
        Self {
            settings,
            waiting: BTreeMap::new(),
            notes,
            loaded_at: SystemTime::now(),
            failure: None,
        }
    }
}

/// The result of a reload.
#[derive(Debug)]
pub enum Outcome {
    /// No value changed.
    Unchanged {
        /// True if the previous reload had failed.
        mended: bool,
    },
    /// Values changed, now or at the next restart.
    Changed(Change),
    /// The new configuration is wrong; the old one stays in force.
    Refused(ConfigError),
}

/// The changes of a reload.
#[derive(Debug)]
pub struct Change {
    /// Keys with values that took effect.
    pub applied: Vec<String>,
    /// Keys with values that need a restart, those of earlier reloads included.
    pub waiting: Vec<String>,
    /// Warnings that the previous configuration did not have.
    pub notes: Vec<String>,
    /// The new view for operators: [`Live::set_view`] it once everything that depends on the old values has followed.
    pub view: ConfigView,
}

impl Live {
    /// Applies a loaded configuration, except for values that need a restart. If it is wrong, the
    /// whole old configuration stays in force. After a change, the view for operators is the caller's
    /// to replace. Not to be called concurrently.
    pub fn reload(&self, loaded: Result<LoadedConfig, ConfigError>) -> Outcome {
        let before = self.view();
        let merged = loaded.and_then(|loaded| merge_loaded(&self.get(), &before, loaded));
        let (config, mut view, mut applied) = match merged {
            Ok(merged) => merged,
            Err(error) => {
                self.set_view(ConfigView {
                    failure: Some(Failure {
                        at: SystemTime::now(),
                        problems: error.problems.clone(),
                    }),
                    ..(*before).clone()
                });
                return Outcome::Refused(error);
            }
        };
        if admin_token(&config) != admin_token(&self.get()) {
            applied.push(ADMIN_TOKEN.to_owned());
        }
        // The paths are unchanged, but the content of the files is not.
        if config.server.tls.serving != self.get().server.tls.serving
            && !applied.iter().any(|key| key.starts_with("server.tls."))
        {
            applied.push("server.tls.cert".to_owned());
        }
        if applied.is_empty() {
            view.loaded_at = before.loaded_at;
            if view.waiting == before.waiting {
                self.set_view(view);
                let mended = before.failure.is_some();
                return Outcome::Unchanged { mended };
            }
        } else {
            self.replace(config);
        }
        let notes = view.notes.iter();
        let notes = notes.filter(|note| !before.notes.contains(note));
        Outcome::Changed(Change {
            applied,
            waiting: view.waiting.keys().cloned().collect(),
            notes: notes.cloned().collect(),
            view,
        })
    }
}

/// Returns the new configuration, with the old values of keys that need a restart, its view, and the keys with values
/// that take effect.
fn merge_loaded(
    in_force: &Config,
    before: &ConfigView,
    loaded: LoadedConfig,
) -> Result<(Config, ConfigView, Vec<String>), ConfigError> {
    let mut config = loaded.config;
    restart::restore_values(&mut config, in_force);
    let (old, mut new) = (by_key(&before.settings), by_key(&loaded.settings));
    let mut waiting = BTreeMap::new();
    let mut applied = Vec::new();
    let keys: BTreeSet<String> = old.keys().chain(new.keys()).cloned().collect();
    for key in keys {
        let was = old.get(&key);
        if was.map(|was| &was.raw) == new.get(&key).map(|is| &is.raw) {
            continue;
        }
        if restart::needs_restart(&key) {
            waiting.insert(key.clone(), new.remove(&key));
            new.extend(was.map(|was| (key, was.clone())));
        } else {
            applied.push(key);
        }
    }
    // Loading has checked the new values together, but not in combination with the old ones
    // that stay.
    let source_of = |key: &str| new.get(key).map_or(Source::Default, |s| s.source.clone());
    let notes = check::check(&config, &source_of).map(|(notes, _)| notes);
    let notes = notes.or_else(|problems| check_remaining(problems, &waiting))?;
    let mut view = ConfigView::at_start(new.into_values().collect(), notes);
    view.waiting = waiting;
    Ok((config, view, applied))
}

/// Returns the problems of the new values in combination with the old ones that stay. Problems of
/// keys that need a restart are ignored: their values were valid at the start, and the next start
/// checks their files again.
fn check_remaining(
    problems: Vec<Problem>,
    waiting: &BTreeMap<String, Option<Setting>>,
) -> Result<Vec<String>, ConfigError> {
    let stays = |problem: &Problem| problem.key.as_deref().is_some_and(restart::needs_restart);
    let mut problems: Vec<Problem> = problems.into_iter().filter(|p| !stays(p)).collect();
    if problems.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<&str> = waiting.keys().map(String::as_str).collect();
    let first = format!("; a restart is needed first, for {}", keys.join(", "));
    for problem in &mut problems {
        problem.reason += &first;
    }
    Err(ConfigError { problems })
}

fn by_key(settings: &[Setting]) -> BTreeMap<String, Setting> {
    let pairs = settings.iter().map(|s| (s.key.clone(), s.clone()));
    pairs.collect()
}

fn admin_token(config: &Config) -> Option<&str> {
    let token = config.auth.admin_token.as_ref();
    token.map(ExposeSecret::expose_secret)
}

#[cfg(test)]
mod tests;
