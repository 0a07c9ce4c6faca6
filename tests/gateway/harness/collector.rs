//! A collector of spans, over both protocols of OTLP: OTLP over HTTP from an [`Agent`], gRPC by hand over HTTP/2.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use super::agent::NEVER;
use super::agent::{Agent, Step};
use super::planted;

/// The collector's response to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Takes it.
    Takes,
    /// Refuses it for good: 400, `INVALID_ARGUMENT`.
    Refuses,
    /// Never answers.
    Sleeps,
}

/// A span as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty: a root.
    pub(crate) parent: String,
    pub(crate) state: String,
    pub(crate) name: String,
    /// 2: server, 3: client, 5: consumer.
    pub(crate) kind: i32,
    /// 0: unset, 2: error.
    pub(crate) status: i32,
    pub(crate) nanos: (u64, u64),
    pub(crate) attributes: BTreeMap<String, Value>,
    /// The resource that sent it.
    pub(crate) resource: BTreeMap<String, Value>,
}

impl Span {
    /// An attribute; null if there is none.
    pub(crate) fn get(&self, key: &str) -> Value {
        self.attributes.get(key).cloned().unwrap_or(Value::Null)
    }

    pub(crate) fn is_server(&self) -> bool {
        self.kind == 2
    }

    pub(crate) fn is_client(&self) -> bool {
        self.kind == 3
    }

    pub(crate) fn service(&self) -> &str {
        self.resource["service.name"].as_str().expect("a name")
    }
}

#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    /// Fields of each request.
    fields: Vec<String>,
}

/// A running collector. Dropping it stops it, and looks for secrets in all that it got.
pub(crate) struct Collector {
    http: Agent,
    grpc: SocketAddr,
    received: Arc<Mutex<Received>>,
    mood: Arc<Mutex<Mood>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
        if !std::thread::panicking() {
            planted::assert_none_in(&format!("{:?}", self.spans()), "a span");
        }
    }
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let received = Arc::new(Mutex::new(Received::default()));
        let mood = Arc::new(Mutex::new(Mood::Takes));
        let (into, how) = (Arc::clone(&received), Arc::clone(&mood));
        let http = Agent::scripted(move |request| {
            if !request.head.starts_with("POST /v1/traces HTTP/1.1\r\n") {
                let no = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
                return vec![Step::write(no)];
            }
            match *how.lock().expect("not poisoned") {
                Mood::Takes => {
                    assert_eq!(request.field("content-type"), Some("application/x-protobuf"));
                    into.lock().expect("not poisoned").take(&request.body, &request.head);
                    let yes = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
                    vec![Step::write(yes)]
                }
                Mood::Refuses => {
                    let no = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
                    vec![Step::write(no)]
                }
                Mood::Sleeps => vec![Step::Hang],
            }
        })
        .await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let grpc = listener.local_addr().expect("bound");
        let (into, how) = (Arc::clone(&received), Arc::clone(&mood));
        let task = tokio::spawn(async move {
            let mut serving = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                serving.spawn(serve(stream, Arc::clone(&into), Arc::clone(&how)));
            }
        });
        Self {
            http,
            grpc,
            received,
            mood,
            task,
        }
    }

    /// Its base URL for `http/protobuf`.
    pub(crate) fn http(&self) -> String {
        format!("http://127.0.0.1:{}", self.http.port)
    }

    /// Its base URL for gRPC.
    pub(crate) fn grpc(&self) -> String {
        format!("http://{}", self.grpc)
    }

    pub(crate) fn set(&self, mood: Mood) {
        *self.mood.lock().expect("not poisoned") = mood;
    }

    /// Everything it got so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.received.lock().expect("not poisoned").spans.clone()
    }

    /// The fields of each request so far, as text.
    pub(crate) fn fields(&self) -> Vec<String> {
        self.received.lock().expect("not poisoned").fields.clone()
    }

    /// The spans that fit, once there are `count` of them.
    pub(crate) async fn await_spans(
        &self,
        count: usize,
        fits: impl Fn(&Span) -> bool,
    ) -> Vec<Span> {
        let deadline = Instant::now() + NEVER;
        loop {
            let mut found = self.spans();
            found.retain(&fits);
            if found.len() >= count {
                return found;
            }
            assert!(
                Instant::now() < deadline,
                "{} of {count} spans: {found:#?}\nof all: {:#?}",
                found.len(),
                self.spans()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The spans of a request, by its id, server first; and those below them.
    pub(crate) async fn of_request(&self, id: &str, count: usize) -> Vec<Span> {
        let server = self.await_spans(1, |span| span.get("a2a.request_id") == id);
        let trace = server.await.remove(0).trace;
        let mut spans = self.await_spans(count, |span| span.trace == trace).await;
        spans.sort_by_key(|span| (span.kind, span.nanos));
        spans
    }
}

impl Received {
    fn take(&mut self, body: &[u8], fields: &str) {
        let request = ExportTraceServiceRequest::decode(body).expect("an export request");
        self.fields.push(fields.to_owned());
        for of_resource in request.resource_spans {
            let resource = of_resource.resource.expect("a resource");
            let resource = read(&resource.attributes);
            for span in of_resource.scope_spans.into_iter().flat_map(|s| s.spans) {
                self.spans.push(Span {
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    state: span.trace_state,
                    name: span.name,
                    kind: span.kind,
                    status: span.status.map_or(0, |status| status.code),
                    nanos: (span.start_time_unix_nano, span.end_time_unix_nano),
                    attributes: read(&span.attributes),
                    resource: resource.clone(),
                });
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(attributes: &[KeyValue]) -> BTreeMap<String, Value> {
    let value = |pair: &KeyValue| match pair.value.as_ref().and_then(|v| v.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => json!(text),
        Some(any_value::Value::IntValue(number)) => json!(number),
        Some(any_value::Value::BoolValue(yes)) => json!(yes),
        other => json!(format!("{other:?}")),
    };
    attributes
        .iter()
        .map(|pair| (pair.key.clone(), value(pair)))
        .collect()
}

/// One connection of gRPC.
async fn serve(stream: TcpStream, into: Arc<Mutex<Received>>, how: Arc<Mutex<Mood>>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    let mut sleeping = Vec::new();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let mood = *how.lock().expect("not poisoned");
        if mood == Mood::Sleeps {
            sleeping.push((request, respond));
            continue;
        }
        let into = Arc::clone(&into);
        tokio::spawn(async move {
            let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
            assert_eq!(request.uri().path(), path);
            let fields = format!("{:?}", request.headers());
            let mut body = request.into_body();
            let mut bytes = BytesMut::new();
            while let Some(Ok(piece)) = body.data().await {
                let _ = body.flow_control().release_capacity(piece.len());
                bytes.extend_from_slice(&piece);
            }
            let head = http::Response::builder().header("content-type", "application/grpc");
            if mood == Mood::Refuses {
                let head = head.header("grpc-status", "3").body(()).expect("a head");
                let _ = respond.send_response(head, true);
                return;
            }
            // A flag and a length stand before the message.
            assert_eq!(bytes.get_u8(), 0, "not compressed");
            let length = bytes.get_u32() as usize;
            into.lock()
                .expect("not poisoned")
                .take(&bytes[..length], &fields);
            let head = head.body(()).expect("a head");
            if let Ok(mut answer) = respond.send_response(head, false) {
                let _ = answer.send_data(Bytes::from_static(&[0; 5]), false);
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                let _ = answer.send_trailers(trailers);
            }
        });
    }
}
