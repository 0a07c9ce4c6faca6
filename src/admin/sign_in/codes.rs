//! Sign-ins of which the page has not begun the session yet, by the hash of the cookie and of a code that is good once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use http::HeaderMap;

use super::binding::Cookie;
use super::{CODES_MAX, FIELD, cookie_name};
use crate::admin::session::{self, NewSession, Sessions, random};
use crate::identity::CredentialHash;

/// A sign-in of which the page has not begun the session yet.
struct Waiting {
    session: NewSession,
    until: Instant,
}

/// The sign-ins that wait.
pub(super) struct Codes {
    sessions: Arc<Sessions>,
    waiting: Mutex<HashMap<CredentialHash, Waiting>>,
}

impl Codes {
    /// Creates them without one. `sessions` revokes the token of one that the page does not begin.
    pub(super) fn new(sessions: &Arc<Sessions>) -> Self {
        Self {
            sessions: Arc::clone(sessions),
            waiting: Mutex::default(),
        }
    }

    /// Keeps a session until the page begins it. Returns the code.
    pub(super) fn keep(&self, cookie: &Cookie, session: NewSession, until: Instant) -> String {
        let code = random();
        let mut waiting = self.waiting();
        if waiting.len() >= CODES_MAX
            && let Some(oldest) = waiting
                .iter()
                .min_by_key(|(_, one)| one.until)
                .map(|(key, _)| *key)
            && let Some(gone) = waiting.remove(&oldest)
        {
            self.sessions.forget(&gone.session);
        }
        let key = session::key_of(cookie.as_str(), &code);
        waiting.insert(key, Waiting { session, until });
        code
    }

    /// Takes the session of the code in a request, with the cookie of its sign-in.
    pub(super) fn take(&self, headers: &HeaderMap) -> Option<NewSession> {
        let code = headers.get(FIELD)?.to_str().ok()?;
        let mut waiting = self.waiting();
        let mut cookies = session::cookies_of(headers, cookie_name(headers));
        let found = cookies.find_map(|cookie| waiting.remove(&session::key_of(cookie, code)));
        found.map(|found| found.session)
    }

    /// Returns the sessions that wait, after removing those with a code that is too old.
    fn waiting(&self) -> MutexGuard<'_, HashMap<CredentialHash, Waiting>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        waiting.retain(|_, one| {
            let stays = now < one.until;
            if !stays {
                self.sessions.forget(&one.session);
            }
            stays
        });
        waiting
    }
}
