//! What must never be seen: after a session with every kind of credential, good and bad, neither the
//! log, nor the metrics, nor the audit, nor an event, nor a refusal holds a token, a word of a message, or a
//! password in a URL.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::audit::all_written;
use crate::harness::planted::DATABASE_PASSWORD;
use crate::harness::servers::{self, Redis};
use crate::harness::watcher::Feed;
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Connection, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD,
    Step, card, chunk, ok_json, until_found,
};

/// In every body of the control plane. Events may show it: cards and current tasks are there to be seen.
const WORD: &str = "xylophone-quarter";

/// In every message, of callers and of agents.
const SAID: &str = "marimba-thirteenth";

/// In every URL with userinfo.
const PASSWORD: &str = "hunter-in-the-url";

/// Tokens that nobody made, and what is no token at all.
const STRAY: [&str; 5] = [
    "Bearer a2aw_strayworkspacetokenstrayworkspacetokenstray",
    "Bearer 0123456789strayplatformtokenstrayplatform00",
    "Bearer eyJhbGciOiJFZERTQSJ9.c3RyYXljYW52YXN0b2tlbg.c3RyYXlzaWduYXR1cmU",
    "Bearer a2aw_stray two words in the stray field",
    "Basic c3RyYXk6YmFzaWNwYXNzd29yZA==",
];

/// What a session has shown, to be looked for.
struct Session {
    gateway: Gateway,
    secrets: Vec<String>,
    refusals: Vec<Answer>,
}

impl Session {
    async fn send(&mut self, request: Request) -> Answer {
        let answer = self.gateway.call(&request).await;
        if answer.status >= 400 {
            self.refusals.push(answer.clone());
        }
        answer
    }

    async fn as_operator(&mut self, path: &str, body: Value) -> Value {
        let request = Request::post(path, body.to_string()).bearer(ADMIN);
        let answer = self.send(request).await;
        assert_eq!(answer.status, 201, "{path}: {}", answer.text());
        answer.json()
    }

    /// Keeps a token that an answer showed.
    fn keep(&mut self, answer: &Value, name: &str) -> String {
        let token = answer[name].as_str().unwrap().to_owned();
        self.secrets.push(token.clone());
        token
    }

    async fn register(&mut self, id: &str, enrolment: &str, url: &str) -> Answer {
        let body = json!({"id": id, "url": url, "agent_card": card(WORD)});
        let request = Request::post("/registry/register", body.to_string());
        self.send(request.bearer(enrolment)).await
    }

    async fn workspace(&mut self, id: &str, url: &str) -> String {
        let created = json!({"id": id, "name": id});
        let created = self.as_operator("/workspaces", created).await;
        let enrolment = self.keep(&created, "enrolment_token");
        // Refused first: the agent gave its own password away.
        for bad in [
            format!("http://agent:{PASSWORD}@127.0.0.1:9/"),
            format!("ftp://agent:{PASSWORD}@127.0.0.1/"),
            format!("http://[agent:{PASSWORD}@"),
        ] {
            let answer = self.register(id, &enrolment, &bad).await;
            assert!((400..=502).contains(&answer.status), "{}", answer.text());
        }
        let answer = self.register(id, &enrolment, url).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        self.keep(&answer.json(), "token")
    }

    /// Calls of every kind, each with the word somewhere.
    async fn calls(&mut self, token: &str) {
        let path = "/workspaces/target/a2a";
        let whole = CALL.replace("\"hi\"", &format!("\"{SAID}\""));
        let deep = format!("{}\"{SAID}\"{}", "[".repeat(600), "]".repeat(600));
        let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{deep}}}"#);
        for (body, statuses) in [
            (whole.as_str(), [200, 502]),
            (&whole.replace("message/send", "message/stream"), [200, 200]),
            (&whole.replace("message/send", SAID), [200, 502]),
            (&format!(r#"{{"text":"{SAID}"}}"#), [200, 502]),
            (&format!(r#"{{"jsonrpc":"2.0","{SAID}"#), [400, 400]),
            (&format!(r#"["{SAID}"]"#), [400, 400]),
            (&format!(r#"{{"method":{{"{SAID}":1}}}}"#), [400, 400]),
            (&deep, [400, 400]),
        ] {
            for query in [String::new(), format!("?{SAID}={PASSWORD}")] {
                let request = Request::post(format!("{path}{query}"), body)
                    .bearer(token)
                    .field("Cookie", format!("session={PASSWORD}"))
                    .field("X-Api-Key", PASSWORD);
                let answer = self.send(request).await;
                let is_expected = statuses.contains(&answer.status);
                assert!(is_expected, "{body}: {}", answer.text());
            }
        }
    }

    /// What is no HTTP, and what only begins like it.
    async fn noise(&mut self, token: &str) {
        let head = format!(
            "POST /workspaces/target/a2a HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n",
            self.gateway.public
        );
        for noise in [
            format!("{SAID} {SAID}\r\n\r\n"),
            format!("{head}{SAID} {SAID}\r\n\r\n"),
            format!("{head}Content-Length: {SAID}\r\n\r\n{SAID}"),
            format!("{head}Transfer-Encoding: chunked\r\n\r\n{SAID}\r\n{SAID}\r\n"),
            format!("{head}Transfer-Encoding: {SAID}\r\n\r\n{SAID}"),
            format!("{head}Content-Length: 999\r\n\r\n{SAID}"),
        ] {
            let mut connection = Connection::open(self.gateway.public).await;
            connection.send(noise.as_bytes()).await;
            connection.stream.shutdown().await.unwrap();
            self.refusals.extend(connection.try_answer().await);
        }
    }

    /// What the control plane is told, and cannot read.
    async fn changes(&mut self, token: &str) {
        let beat = json!({"workspace_id": "caller", "current_task": WORD, "sample_error": WORD});
        let beats = [
            beat.to_string(),
            format!(r#"{{"workspace_id":{{"{WORD}"#),
            format!(r#"{{"workspace_id":"{WORD}!"}}"#),
        ];
        for body in beats {
            let request = Request::post("/registry/heartbeat", body);
            self.send(request.bearer(token)).await;
        }
        let name = format!(r#"{{"id":"a","name":["{WORD}"]}}"#);
        let mode = format!(r#"{{"name":"x","delivery_mode":"{WORD}"}}"#);
        let user = format!(r#"{{"user":"{WORD}"#);
        for (path, body) in [
            ("/workspaces", name),
            ("/workspaces", mode),
            ("/canvas/tokens", user),
        ] {
            self.send(Request::post(path, body).bearer(ADMIN)).await;
        }
    }

    /// Whether `text` holds any secret: more than the first characters that records may show.
    fn find_in(&self, text: &str) -> Option<String> {
        self.find(&[WORD, SAID, PASSWORD], text)
    }

    fn find(&self, words: &[&str], text: &str) -> Option<String> {
        let planted = words.iter().map(|word| (*word).to_owned());
        let stray = STRAY.iter().flat_map(|field| field.split_once(' '));
        let stray = stray.map(|(_, token)| token.to_owned());
        let mut all = self.secrets.iter().cloned().chain(planted).chain(stray);
        all.find(|secret| {
            // The first part of a signed token is the same for all.
            let is_signed = secret.starts_with("eyJ");
            let shown = is_signed.then(|| secret.rsplit('.').next().unwrap());
            let shown = shown.unwrap_or(secret);
            text.contains(&shown[..shown.len().min(13)])
        })
    }
}

/// Answers as it is asked to, always with the word; the third call of a kind breaks HTTP.
async fn talkative() -> Agent {
    let calls = std::sync::atomic::AtomicUsize::new(0);
    Agent::scripted(move |request| {
        let number = calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if request.text().contains("message/stream") {
            let event = Step::Write(chunk(format!("data: {{\"result\":\"{SAID}\"}}\n\n")));
            return vec![Step::write(SSE_HEAD), event, Step::write(LAST_CHUNK)];
        }
        if number % 3 == 2 {
            let broken = match number % 4 {
                0 => format!("HTTP/1.1 {SAID}\r\n{SAID}\r\n\r\n"),
                1 => format!("HTTP/1.1 200 OK\r\n{SAID} {SAID}\r\n\r\n"),
                2 => format!("HTTP/1.1 200 OK\r\nContent-Length: {SAID}\r\n\r\n{SAID}"),
                _ => format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{SAID}\r\n"),
            };
            return vec![Step::write(broken), Step::Close];
        }
        let body = json!({"jsonrpc": "2.0", "id": "c-1", "result": SAID});
        vec![Step::Write(ok_json(&body.to_string()))]
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_no_body_and_no_password_is_seen_anywhere() {
    let redis = Redis::start();
    let (redis_link, shared) = redis.relayed();
    let (sql_link, sql) = servers::postgres().relayed();
    let sql = sql.replace(DATABASE_PASSWORD, PASSWORD);
    let builder = Builder::new(Pair::Embedded).stores(&sql, &shared);
    let builder = builder.set("telemetry.log", "debug");
    let mut session = Session {
        gateway: builder.start().await,
        secrets: vec![ADMIN.to_owned()],
        refusals: Vec::new(),
    };
    let feed = Request::get("/events").bearer(ADMIN);
    let mut feed = Feed::open(session.gateway.public, &feed).await;
    let target = talkative().await;
    let caller = session.workspace("caller", "http://127.0.0.1:9/").await;
    session.workspace("target", &target.url()).await;
    let org = session
        .as_operator("/orgs/acme/tokens", json!({"note": WORD}))
        .await;
    let org = session.keep(&org, "token");
    let user = json!({"user": "ada", "workspaces": ["target"]});
    let canvas = session.as_operator("/canvas/tokens", user).await;
    let canvas = session.keep(&canvas, "token");
    for token in [caller.as_str(), &canvas, ADMIN] {
        session.calls(token).await;
    }
    session.noise(&caller).await;
    session.changes(&caller).await;
    for field in STRAY {
        for path in [
            "/workspaces/target/a2a",
            "/workspaces",
            "/registry/register",
        ] {
            let request = Request::post(path, CALL).field("Authorization", field);
            let answer = session.send(request).await;
            assert_eq!(answer.status, 401, "{field}: {}", answer.text());
        }
    }
    let request = Request::post("/workspaces/target/a2a", CALL).bearer(&org);
    assert_eq!(session.send(request).await.status, 403);
    // Another program writes an address with a password.
    let address = format!("http://agent:{PASSWORD}@127.0.0.1:9/");
    redis.command(&["SET", "ws:target:url", &address]);
    let request = Request::post("/workspaces/target/a2a", CALL).bearer(&caller);
    // The old address may still be known; what listens there is no agent of A2A.
    until_found("the address is seen", async || {
        let answer = session.send(request.clone()).await;
        (answer.status == 502 && answer.reason() == "address_forbidden").then_some(())
    })
    .await;
    // The last that is told: what came before is all.
    let last = json!({"id": "last", "name": "last"});
    session.as_operator("/workspaces", last).await;
    let mut events = 0;
    loop {
        let event = feed.event().await.data;
        let found = session.find(&[SAID, PASSWORD], &event.to_string());
        assert_eq!(found, None, "{event}");
        events += 1;
        if event["workspace_id"] == "last" {
            break;
        }
    }
    assert!(events > 5, "{events}");
    all_written(&session.gateway).await;
    let (mut records, mut cursor) = (0, String::new());
    loop {
        let path = format!("/audit?limit=500{cursor}");
        let page = session.gateway.admin_get(&path).await.unwrap().json();
        let shown = page["records"].as_array().unwrap();
        for record in shown {
            assert_eq!(session.find_in(&record.to_string()), None, "{record}");
        }
        records += shown.len();
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    // Refusals of strangers within a second are one record.
    assert!(records > 25, "{records}");
    // Errors of the stores, with their causes.
    sql_link.cut();
    redis_link.cut();
    let fresh = "a2aw_strayworkspacetokenstrayworkspacetokenfresh";
    let fresh = Request::post("/workspaces/target/a2a", CALL).bearer(fresh);
    assert_eq!(session.send(fresh).await.status, 503);
    let request = Request::post("/workspaces", json!({"name": WORD}).to_string()).bearer(ADMIN);
    assert_eq!(session.send(request).await.status, 503);

    let log = session.gateway.log();
    let is_whole = log.contains("\"target\":\"access\"") && log.lines().count() > 50;
    assert!(is_whole, "{log}");
    let found = |text: &str| session.find_in(text);
    assert_eq!(log.lines().find(|line| found(line).is_some()), None);
    let metrics = session.gateway.admin_get("/metrics").await.unwrap().text();
    assert_eq!(metrics.lines().find(|line| found(line).is_some()), None);
    assert!(session.refusals.len() > 40, "{}", session.refusals.len());
    for refusal in &session.refusals {
        let text = format!("{:?} {}", refusal.fields, refusal.text());
        assert_eq!(found(&text), None, "{text}");
    }
}
