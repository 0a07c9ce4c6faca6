//! A sidecar in front of an agent, and tokens that a gateway could have signed for it.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::agent::Agent;
use super::client::{Answer, Connection, Request};
use super::gateway::CALL;
use super::issuer::{Issuer, Key};
use super::ports::free_address;
use super::spawned::{Spawned, until_listens};
use super::warm::until_holds;

/// Runs `a2a-gateway sidecar` with these arguments to its end. Returns its status and output.
pub(crate) fn ended(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"))
        .arg("sidecar")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.code(), said)
}

/// The workspace that it guards.
pub(crate) const GUARDED: &str = "target";

/// `iss` of the tokens that are signed here.
pub(crate) const ISSUER: &str = "https://gateway.test";

/// A running sidecar. Dropping it kills it.
pub(crate) struct Sidecar {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    running: Spawned,
}

impl Sidecar {
    /// Starts one in front of `agent`, and waits until it listens.
    pub(crate) fn spawn(agent: &Agent, more: &[&str]) -> Self {
        Self::in_front_of(agent, free_address("127.0.0.1"), more)
    }

    /// The same at an address that is known already.
    pub(crate) fn in_front_of(agent: &Agent, address: SocketAddr, more: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let admin = free_address("127.0.0.1");
        let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
        command
            .current_dir(dir.path())
            .args(["sidecar", "--workspace", GUARDED])
            .args(["--upstream", agent.url().trim_end_matches('/')])
            .args(["--listen", &address.to_string()])
            .args(["--set", &format!("admin.listen={admin}")])
            .args(more);
        let running = Spawned::start(&mut command, dir, address);
        until_listens(admin, || running.log());
        Self {
            address,
            admin,
            running,
        }
    }

    /// Waits until it can verify callers.
    pub(crate) async fn await_ready(&self) {
        until_holds("it is ready", async || self.ready().await == Some(200)).await;
    }

    /// The status of its `/readyz`. `None`: it is checking the listen address, and does not serve yet.
    async fn ready(&self) -> Option<u16> {
        let stream = tokio::net::TcpStream::connect(self.address).await.ok()?;
        let mut connection = Connection::over(stream);
        let request = Request::get("/auth/ready").wire(&self.address.to_string());
        connection.try_send(&request).await.ok()?;
        connection.try_answer().await.map(|answer| answer.status)
    }

    /// One request on a connection of its own.
    pub(crate) async fn call(&self, request: &Request) -> Answer {
        Connection::open(self.address).await.call(request).await
    }

    /// A GET on its admin listener.
    pub(crate) async fn admin_get(&self, path: &str) -> Answer {
        let mut connection = Connection::open(self.admin).await;
        connection.call(&Request::get(path)).await
    }

    /// Everything it logged so far.
    pub(crate) fn log(&self) -> String {
        self.running.log()
    }

    /// SIGTERM, and the status that it ends with.
    pub(crate) fn terminate(&mut self) -> std::process::ExitStatus {
        let id = self.running.child.id().to_string();
        let killed = Command::new("kill").args(["-s", "TERM", &id]).status();
        assert!(killed.expect("kill runs").success());
        self.running.child.wait().expect("a child")
    }
}

/// A sidecar in front of an agent, with keys that a test signs with.
pub(crate) struct Guarded {
    pub(crate) key: Key,
    pub(crate) issuer: Issuer,
    pub(crate) agent: Agent,
    pub(crate) sidecar: Sidecar,
}

impl Guarded {
    /// Ready, in front of an agent that answers every call alike.
    pub(crate) async fn start(more: &[&str]) -> Self {
        let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
        Self::start_with(agent, more).await
    }

    pub(crate) async fn start_with(agent: Agent, more: &[&str]) -> Self {
        let key = Key::new("k-1");
        let issuer = Issuer::start(ISSUER, &[&key]).await;
        let sidecar = Sidecar::spawn(&agent, &arguments(&issuer, more));
        sidecar.await_ready().await;
        Self {
            key,
            issuer,
            agent,
            sidecar,
        }
    }

    /// A good token for a call with this body.
    pub(crate) fn token(&self, body: &str) -> String {
        self.sign(&bound(body, json!({})))
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        self.key.sign_as("a2a-pair+jwt", "k-1", claims)
    }

    pub(crate) async fn call(&self, request: &Request) -> Answer {
        self.sidecar.call(request).await
    }
}

/// The arguments of a sidecar that trusts `issuer`.
pub(crate) fn arguments<'a>(issuer: &Issuer, more: &[&'a str]) -> Vec<&'a str> {
    let jwks = format!("{}.well-known/jwks.json", issuer.host.url());
    let own = ["--jwks", jwks.leak(), "--issuer", ISSUER];
    own.iter().chain(more).copied().collect()
}

/// Good claims of a token that is bound to no body, with `more` in them. `null` takes a claim out.
pub(crate) fn claims(more: Value) -> Value {
    let now = jsonwebtoken::get_current_timestamp();
    let mut claims = json!({
        "iss": ISSUER, "sub": "caller", "aud": GUARDED, "iat": now, "nbf": now, "exp": now + 60,
        "jti": uuid::Uuid::now_v7().to_string(), "scope": "a2a:message", "rel": "sibling", "gen": 1,
    });
    let all = claims.as_object_mut().expect("an object");
    all.extend(more.as_object().expect("an object").clone());
    all.retain(|_, value| !value.is_null());
    claims
}

/// The same, bound to a call with this body.
pub(crate) fn bound(body: &str, more: Value) -> Value {
    let hash = digest(&SHA256, body.as_bytes());
    let mut binding = json!({"method": "message/send", "bh": URL_SAFE_NO_PAD.encode(hash)});
    let more = more.as_object().expect("an object").clone();
    binding.as_object_mut().expect("an object").extend(more);
    claims(binding)
}

/// A call of the agent with this token.
pub(crate) fn call(token: &str) -> Request {
    Request::post("/", CALL).bearer(token)
}
