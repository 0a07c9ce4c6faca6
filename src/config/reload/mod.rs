//! Another configuration in place of the one in force: what changed, what waits for a restart, and
//! the last good one kept when the new one is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use secrecy::ExposeSecret;

use super::live::Live;
use super::load::{ADMIN_TOKEN, ConfigError, Loaded, Problem, Setting, Source};
use super::{Config, check, restart};

/// What an operator may see of the configuration in force.
#[derive(Clone, Debug)]
pub struct Told {
    /// Every value in force and its source, in the order of the keys.
    pub settings: Vec<Setting>,
    /// Values that wait for a restart; `None`: the key is to have no value.
    pub waiting: BTreeMap<String, Option<Setting>>,
    /// What is allowed and probably not meant.
    pub notes: Vec<String>,
    /// Since when it is in force.
    pub loaded_at: SystemTime,
    /// The last reload, if it failed.
    pub failure: Option<Failure>,
}

/// Why and when the last reload failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// When.
    pub at: SystemTime,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
}

impl Told {
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

/// What a reload did.
#[derive(Debug)]
pub enum Outcome {
    /// The same values as before. `mended`: the reload before had failed.
    Unchanged {
        /// Whether this is news.
        mended: bool,
    },
    /// Something else is in force, or waits for a restart.
    Changed(Change),
    /// What was in force stays.
    Refused(ConfigError),
}

/// What is new.
#[derive(Debug, Default)]
pub struct Change {
    /// Keys whose values count from now on.
    pub applied: Vec<String>,
    /// Keys whose values wait for a restart, those of earlier reloads included.
    pub waiting: Vec<String>,
    /// What is allowed and probably not meant, and was not said before.
    pub notes: Vec<String>,
}

impl Live {
    /// Puts what was loaded in force, but for what needs a restart. When it is wrong, what is in force
    /// stays, whole. One at a time.
    pub fn reload(&self, loaded: Result<Loaded, ConfigError>) -> Outcome {
        let before = self.told();
        let merged = loaded.and_then(|loaded| Merged::over(&self.get(), &before, loaded));
        let merged = match merged {
            Ok(merged) => merged,
            Err(error) => {
                self.tell(Told {
                    failure: Some(Failure {
                        at: SystemTime::now(),
                        problems: error.problems.clone(),
                    }),
                    ..(*before).clone()
                });
                return Outcome::Refused(error);
            }
        };
        let Merged {
            config,
            told,
            mut applied,
        } = merged;
        if token(&config) != token(&self.get()) {
            applied.push(ADMIN_TOKEN.to_owned());
        }
        // The same paths, and something else in the files.
        if config.server.tls.serving != self.get().server.tls.serving
            && !applied.iter().any(|key| key.starts_with("server.tls."))
        {
            applied.push("server.tls.cert".to_owned());
        }
        let change = Change {
            waiting: told.waiting.keys().cloned().collect(),
            notes: new_notes(&told.notes, &before.notes),
            applied,
        };
        let waits_as_before = told.waiting == before.waiting;
        if change.applied.is_empty() {
            self.tell(Told {
                loaded_at: before.loaded_at,
                ..told
            });
            if waits_as_before {
                let mended = before.failure.is_some();
                return Outcome::Unchanged { mended };
            }
        } else {
            self.replace(config, told);
        }
        Outcome::Changed(change)
    }
}

/// The new values over those that only a restart can change.
struct Merged {
    config: Config,
    told: Told,
    applied: Vec<String>,
}

impl Merged {
    fn over(in_force: &Config, before: &Told, loaded: Loaded) -> Result<Self, ConfigError> {
        let mut config = loaded.config;
        restart::keep(&mut config, in_force);
        let (old, mut new) = (by_key(&before.settings), by_key(&loaded.settings));
        let mut waiting = BTreeMap::new();
        let mut applied = Vec::new();
        let keys: BTreeSet<String> = old.keys().chain(new.keys()).cloned().collect();
        for key in keys {
            let was = old.get(&key);
            let same = match (was, new.get(&key)) {
                (Some(was), Some(is)) => was.same_value(is),
                (was, is) => was.is_none() && is.is_none(),
            };
            if same {
                continue;
            }
            if restart::needs_restart(&key) {
                waiting.insert(key.clone(), new.remove(&key));
                new.extend(was.map(|was| (key, was.clone())));
            } else {
                applied.push(key);
            }
        }
        let settings: Vec<Setting> = new.into_values().collect();
        // Loading has checked the new values among themselves, not beside those that stay.
        let notes = check::check(&config, &|key| source(&settings, key));
        let notes = notes.map(|checked| checked.notes);
        let notes = notes.or_else(|problems| refuse(problems, &waiting))?;
        let told = Told {
            settings,
            waiting,
            notes,
            loaded_at: SystemTime::now(),
            failure: None,
        };
        Ok(Self {
            config,
            told,
            applied,
        })
    }
}

/// What is wrong beside the values that stay. Those themselves were good at the start, and what has
/// become of their files is the restart's matter.
fn refuse(
    problems: Vec<Problem>,
    waiting: &BTreeMap<String, Option<Setting>>,
) -> Result<Vec<String>, ConfigError> {
    let stays = |problem: &Problem| problem.key.as_deref().is_some_and(restart::needs_restart);
    let mut problems: Vec<Problem> = problems.into_iter().filter(|p| !stays(p)).collect();
    if problems.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<&str> = waiting.keys().map(String::as_str).collect();
    for problem in &mut problems {
        let keys = keys.join(", ");
        problem.reason += &format!("; a restart is needed first, for {keys}");
    }
    Err(ConfigError { problems })
}

fn by_key(settings: &[Setting]) -> BTreeMap<String, Setting> {
    let pairs = settings.iter().map(|s| (s.key.clone(), s.clone()));
    pairs.collect()
}

fn source(settings: &[Setting], key: &str) -> Source {
    let found = settings.iter().find(|setting| setting.key == key);
    found.map_or(Source::Default, |setting| setting.source.clone())
}

fn new_notes(notes: &[String], said: &[String]) -> Vec<String> {
    let new = notes.iter().filter(|note| !said.contains(note));
    new.cloned().collect()
}

fn token(config: &Config) -> Option<&str> {
    let token = config.auth.admin_token.as_ref();
    token.map(ExposeSecret::expose_secret)
}

#[cfg(test)]
mod tests;
