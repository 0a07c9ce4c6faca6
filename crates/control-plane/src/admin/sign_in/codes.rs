//! Sign-ins of which the page has not begun the session yet, by the hash of the cookie and of a code that is good once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use http::HeaderMap;
use parking_lot::{Mutex, MutexGuard};

use super::binding::Cookie;
use super::{CODES_MAX, FIELD, cookie_name};
use crate::admin::session::{self, NewSession, Sessions, random_secret};
use access::identity::CredentialHash;

/// A sign-in of which the page has not begun the session yet.
struct WaitingSession {
    session: NewSession,
    until: Instant,
}

/// The sign-ins that wait.
pub(super) struct Codes {
    sessions: Arc<Sessions>,
    waiting: Mutex<HashMap<CredentialHash, WaitingSession>>,
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
    pub(super) fn insert_session(
        &self,
        cookie: &Cookie,
        session: NewSession,
        until: Instant,
    ) -> String {
        let code = random_secret();
        let mut waiting = self.lock_waiting();
        if waiting.len() >= CODES_MAX
            && let Some(oldest) = waiting
                .iter()
                .min_by_key(|(_, one)| one.until)
                .map(|(key, _)| *key)
            && let Some(gone) = waiting.remove(&oldest)
        {
            self.sessions.revoke_ended(&gone.session);
        }
        let key = session::session_key(cookie.as_str(), &code);
        waiting.insert(key, WaitingSession { session, until });
        code
    }

    /// Takes the session of the code in a request, with the cookie of its sign-in.
    pub(super) fn take_session(&self, headers: &HeaderMap) -> Option<NewSession> {
        let code = headers.get(FIELD)?.to_str().ok()?;
        let mut waiting = self.lock_waiting();
        let mut cookies = session::cookies_named(headers, cookie_name(headers));
        let found = cookies.find_map(|cookie| waiting.remove(&session::session_key(cookie, code)));
        found.map(|found| found.session)
    }

    /// Returns the sessions that wait, after removing those with a code that is too old.
    fn lock_waiting(&self) -> MutexGuard<'_, HashMap<CredentialHash, WaitingSession>> {
        let mut waiting = self.waiting.lock();
        let now = Instant::now();
        waiting.retain(|_, one| {
            let stays = now < one.until;
            if !stays {
                self.sessions.revoke_ended(&one.session);
            }
            stays
        });
        waiting
    }
}
