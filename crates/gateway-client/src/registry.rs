//! JSON requests to a gateway's public listener, among them registrations and heartbeats.

use std::collections::HashSet;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;
use url::Url;

use super::{ClientError, Request, RequestProgress, Response};

/// Heartbeat interval: a third of the default `registry.heartbeat_ttl` of 90 s, so that two in a
/// row may be lost.
pub const BEAT: Duration = Duration::from_secs(30);

/// Timeout of one request; the registry never waits for an agent.
const WITHIN: Duration = Duration::from_secs(10);

/// Entries of one page: the most that the gateway gives.
const PAGE: &str = "500";

/// Pages of one list: 2,000,000 entries.
const PAGES_MAX: usize = 4_000;

/// Bytes of all pages of one list: several times those of a million workspaces.
const LIST_BYTES_MAX: usize = 2 << 30;

/// Repetitions of one request that exceeds a rate.
const RATE_REPEATS_MAX: usize = 5;

/// Longest delay before such a repetition.
const RATE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Characters of a stored token: a prefix of five, and 43 of base64 for 32 bytes.
const TOKEN_LENGTH: usize = 48;

/// A JSON client of a listener of a gateway.
pub struct Registry {
    base: Url,
    /// The bearer credential, if there is one for all requests.
    pub token: Option<String>,
    advice: &'static str,
}

/// The request to the gateway failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// There was no response.
    #[error("{route}{source}")]
    Unanswered {
        /// Method and path; empty for a user, who typed a command.
        route: String,
        /// The cause.
        #[source]
        source: ClientError,
    },
    /// The gateway rejected the request.
    #[error("{route}{}", describe_refusal(*status, body))]
    Refused {
        /// Method and path; empty for a user, who typed a command.
        route: String,
        /// HTTP status.
        status: u16,
        /// The gateway's reason and message, and for a user what to do (`advice`); null if the response is not JSON.
        body: Value,
        /// Time after which the gateway wants to be asked again, if it says one.
        retry_after: Option<Duration>,
    },
    /// A list did not end.
    #[error("{route} has no end: {why}; ask for a part of it, or another gateway")]
    Endless {
        /// Method and path.
        route: String,
        /// The bound that it passed.
        why: &'static str,
    },
}

impl RegistryError {
    /// Returns the HTTP status, if there was a response.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Returns the time after which the gateway wants to be asked again, if it says one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// True if the request was certainly not sent.
    pub fn is_unsent(&self) -> bool {
        matches!(self, Self::Unanswered { source, .. } if source.reached != RequestProgress::Connection)
    }
}

impl Request<'_> {
    /// Returns method and path.
    fn route(&self) -> String {
        format!("{} {}", self.method, self.url.path())
    }

    fn unanswered(&self) -> impl Fn(ClientError) -> RegistryError + use<> {
        let (route, has_advice) = (self.route(), !self.advice.is_empty());
        move |source| RegistryError::Unanswered {
            route: match source.reached {
                _ if has_advice => String::new(),
                _ => format!("{route} failed: "),
            },
            source,
        }
    }

    /// Sends the request, and returns the head of the response unless that is a refusal.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn send_checked(self) -> Result<Response, RegistryError> {
        let (route, unanswered) = (self.route(), self.unanswered());
        let is_of_user = !self.advice.is_empty();
        let token = self.token;
        let answer = self.send().await.map_err(&unanswered)?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let retry_after = answer.retry_after();
        let (status, mut body) = answer.read_json().await.map_err(unanswered)?;
        let route = match is_of_user {
            true => String::new(),
            false => format!("{route} was "),
        };
        let reason = body["reason"].as_str().unwrap_or_default().to_owned();
        if is_of_user && let Some(advice) = advice_for(&reason, token) {
            body["advice"] = advice.into();
        }
        Err(RegistryError::Refused {
            route,
            status,
            body,
            retry_after,
        })
    }

    /// Sends the request, and returns the JSON of the response.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn fetch_json(self) -> Result<Value, RegistryError> {
        let unanswered = self.unanswered();
        let read = self.send_checked().await?.read_json().await;
        Ok(read.map_err(unanswered)?.1)
    }
}

impl Registry {
    /// Returns a client of the gateway at `base` for a program; nothing is sent yet.
    pub fn new(base: Url) -> Self {
        Self::for_user(base, None, "")
    }

    /// Returns a client with a credential, and `advice` for a user whose gateway is not there.
    pub fn for_user(base: Url, token: Option<String>, advice: &'static str) -> Self {
        Self {
            base,
            token,
            advice,
        }
    }

    /// Returns a request to a path of the gateway.
    pub fn request(&self, method: Method, path: &str, query: &[(&str, &str)]) -> Request<'_> {
        let mut url = self.base.clone();
        let base = self.base.path().trim_end_matches('/');
        url.set_path(&format!("{base}{path}"));
        url.set_query(None);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Request {
            method,
            token: self.token.as_deref(),
            advice: self.advice,
            ..Request::get(url, WITHIN)
        }
    }

    /// Returns the JSON at a path, with a query.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, RegistryError> {
        self.request(Method::GET, path, query).fetch_json().await
    }

    /// Posts JSON to a path of the gateway and returns the JSON of the response.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn post(
        &self,
        path: &str,
        token: &str,
        body: &Value,
    ) -> Result<Value, RegistryError> {
        let request = Request {
            token: Some(token),
            ..self.request(Method::POST, path, &[])
        };
        request.with_body(body).fetch_json().await
    }

    /// Returns one page of a list with the cursor of the next one, `next_cursor` or that in `Link` of an array, and its
    /// bytes. A request that exceeds a rate is repeated when the gateway says so.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn get_list_page(
        &self,
        path: &str,
        query: &[(&str, &str)],
        cursor: Option<&str>,
    ) -> Result<(Value, Option<String>, usize), RegistryError> {
        let mut query = [query, &[("limit", PAGE)]].concat();
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        let request = self.request(Method::GET, path, &query);
        let mut repeats = 0;
        let answer = loop {
            let sent = request.clone().send_checked().await;
            let wait = match &sent {
                Err(error) if error.status() == Some(429) && repeats < RATE_REPEATS_MAX => {
                    error.retry_after().unwrap_or(Duration::from_secs(1))
                }
                _ => break sent?,
            };
            repeats += 1;
            sleep(wait.min(RATE_WAIT_MAX)).await;
        };
        let linked = next_cursor(&answer);
        let text = answer.read_body().await.map_err(request.unanswered())?;
        let body: Value = serde_json::from_slice(&text).unwrap_or_default();
        let cursor = body["next_cursor"].as_str().map(str::to_owned).or(linked);
        Ok((body, cursor, text.len()))
    }

    /// Returns all entries of a list: of the array itself, or of its member `name`.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn get_whole_list(
        &self,
        path: &str,
        query: &[(&str, &str)],
        name: Option<&str>,
    ) -> Result<Vec<Value>, RegistryError> {
        let mut entries = Vec::new();
        let (mut cursors, mut bytes) = (HashSet::new(), 0);
        let mut cursor: Option<String> = None;
        let why = loop {
            let page = self.get_list_page(path, query, cursor.as_deref()).await?;
            let (mut page, next, size) = page;
            bytes += size;
            let list = match name {
                Some(name) => page[name].take(),
                None => page,
            };
            if let Value::Array(list) = list {
                entries.extend(list);
            }
            let Some(next) = next else {
                return Ok(entries);
            };
            if !cursors.insert(next.clone()) {
                break "a page leads back to an earlier one";
            }
            if cursors.len() >= PAGES_MAX || bytes > LIST_BYTES_MAX {
                break "it has more than 4,000 pages, or 2 GiB";
            }
            cursor = Some(next);
        };
        let route = self.request(Method::GET, path, query).route();
        Err(RegistryError::Endless { route, why })
    }

    /// Registers a workspace. Returns its new token, if the gateway issued one.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn register(
        &self,
        token: &str,
        body: &Value,
    ) -> Result<Option<String>, RegistryError> {
        let answer = self.post("/registry/register", token, body).await?;
        Ok(answer["token"].as_str().map(str::to_owned))
    }

    /// Sends a heartbeat of the workspace's agent.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn send_heartbeat(&self, id: &str, token: &str) -> Result<(), RegistryError> {
        let body = json!({"workspace_id": id});
        self.post("/registry/heartbeat", token, &body)
            .await
            .map(drop)
    }
}

/// Returns a refusal in a sentence, with what to do if that is known.
fn describe_refusal(status: u16, body: &Value) -> String {
    if body["reason"].is_null() && body["error"].is_null() {
        return format!(
            "refused with {status}, and not by a gateway: --url takes its public listener (server.listen), --admin its admin listener (admin.listen)"
        );
    }
    let [reason, error] = ["reason", "error"].map(|name| refusal_word(body, name));
    let error = in_commands(error);
    let advice = body["advice"].as_str().map(|advice| format!("; {advice}"));
    format!(
        "refused with {status} {reason}: {error}{}",
        advice.unwrap_or_default()
    )
}

/// Returns a message of the gateway with the commands of this program in place of the routes that it names.
pub fn in_commands(message: &str) -> String {
    let routes = [
        ("POST /registry/check-access", "`a2a-gateway explain`"),
        ("POST /workspaces", "`a2a-gateway workspace create`"),
        ("GET /workspaces", "`a2a-gateway workspace list`"),
        ("GET /grants", "`a2a-gateway grant list`"),
        ("POST /grants", "`a2a-gateway grant create`"),
        ("GET /stops", "`a2a-gateway stops`"),
        ("POST /stops", "`a2a-gateway stop`"),
        ("GET /caps", "`a2a-gateway caps`"),
        ("GET /explain", "`a2a-gateway explain`"),
        ("GET /audit", "`a2a-gateway audit list`"),
    ];
    let mut text = message.to_owned();
    for (route, command) in routes {
        // One below it is another route.
        if let Some((before, behind)) = text.split_once(route)
            && !behind.starts_with(['/', '-'])
        {
            text = format!("{before}{command}{behind}");
        }
    }
    text
}

/// Returns what a user does after a refusal: the next command to type. `token` is the credential that was sent.
pub fn advice_for(reason: &str, token: Option<&str>) -> Option<String> {
    let advice = match reason {
        "unauthenticated" => match token {
            Some(token) => return Some(fault_of(token)),
            None => {
                "give a token with --token, in A2A_GATEWAY_TOKEN or by a context (`a2a-gateway login`)"
            }
        },
        "role_required" | "not_permitted" | "caller_mismatch" => {
            "`a2a-gateway whoami` says who you are there; `a2a-gateway explain CALLER TARGET` why a call is refused"
        }
        "workspace_not_found" => "`a2a-gateway workspace list` shows those that there are",
        "workspace_offline" | "workspace_restarting" | "agent_unreachable" | "agent_busy" => {
            "`a2a-gateway agents` shows who lives, `a2a-gateway explain CALLER TARGET` why it is refused"
        }
        "stopped" => "`a2a-gateway stops` shows the stop, and `a2a-gateway release` ends it",
        "cap_reached" => "`a2a-gateway caps` shows its use",
        "store_unavailable" | "shutting_down" => "`a2a-gateway health` says what is away",
        "rate_limited" | "overloaded" => "try again in a while",
        "not_found" => {
            "the other listener may have it: --url takes server.listen, --admin takes admin.listen"
        }
        "task_not_found" => "a task belongs to its caller: ask with the token that began it",
        _ => return None,
    };
    Some(advice.to_owned())
}

/// Says what is wrong with a token that a gateway does not take, as far as its form shows it.
fn fault_of(token: &str) -> String {
    let forms = [
        ("a2aa_", "an operator's"),
        ("a2ae_", "an enrolment"),
        ("a2ao_", "an org's"),
        ("a2aw_", "a workspace's"),
    ];
    let length = token.chars().count();
    let form = forms.iter().find(|(prefix, _)| token.starts_with(prefix));
    match form {
        Some((_, kind)) if length < TOKEN_LENGTH => format!(
            "too short for {kind} token ({length} characters of {TOKEN_LENGTH}): it was cut, or misspelt"
        ),
        Some((_, kind)) if length > TOKEN_LENGTH => format!(
            "too long for {kind} token ({length} characters, not {TOKEN_LENGTH}): something stands behind it"
        ),
        Some((_, kind)) => format!(
            "it has the form of {kind} token: it was revoked, has ended, or is of another gateway; `a2a-gateway login` takes another"
        ),
        None if token.matches('.').count() == 2 => {
            "the signed token has ended, or is not for this gateway: `a2a-gateway token inspect -` shows what it says".to_owned()
        }
        None => "it has no form of a token: an operator's begins with a2aa_, a workspace's with a2aw_, an org's with a2ao_".to_owned(),
    }
}

/// Returns a member of a refusal; `?` if it has none.
fn refusal_word<'a>(body: &'a Value, name: &str) -> &'a str {
    body[name].as_str().unwrap_or("?")
}

/// Returns the cursor of the page that `Link` calls the next one (RFC 8288).
fn next_cursor(answer: &Response) -> Option<String> {
    let link = answer.header_value("link")?;
    let (target, rest) = link.strip_prefix('<')?.split_once('>')?;
    if !rest.contains("rel=\"next\"") {
        return None;
    }
    let base = Url::parse("http://gateway.invalid").ok()?;
    let target = base.join(target).ok()?;
    let mut query = target.query_pairs();
    query
        .find(|(name, _)| name == "cursor")
        .map(|(_, cursor)| cursor.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_in_a_message_is_said_as_a_command() {
        assert_eq!(
            in_commands("create it with POST /workspaces; GET /grants has the ids"),
            "create it with `a2a-gateway workspace create`; `a2a-gateway grant list` has the ids"
        );
        let below = "POST /workspaces/x/resume";
        assert_eq!(in_commands(below), below);
    }

    #[test]
    fn a_token_that_is_not_taken_is_told_by_its_form() {
        for (token, part) in [
            (
                "a2aw_abc",
                "too short for a workspace's token (8 characters of 48)",
            ),
            (
                &format!("a2aa_{}", "x".repeat(44)),
                "too long for an operator's token",
            ),
            (
                &format!("a2ao_{}", "x".repeat(43)),
                "the form of an org's token: it was revoked",
            ),
            ("secret", "no form of a token"),
            ("a.b.c", "token inspect"),
        ] {
            let told = advice_for("unauthenticated", Some(token)).unwrap();
            assert!(told.contains(part) && !told.contains("xxx"), "{told}");
        }
        assert!(
            advice_for("unauthenticated", None)
                .unwrap()
                .contains("a2a-gateway login")
        );
        assert!(advice_for("conflict", None).is_none());
    }
}
