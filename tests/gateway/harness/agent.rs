//! An agent that records the exact bytes it got, and responds by script: complete, slow, broken.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::ports::free_listener;

/// The time after which an event counts as never: far beyond what a busy machine needs.
pub(crate) const NEVER: Duration = Duration::from_secs(120);

/// One request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    /// Which connection it came on, counted from 0.
    pub(crate) connection: usize,
    /// The head, up to and with the empty line.
    pub(crate) head: String,
    /// The body, exact.
    pub(crate) body: Vec<u8>,
}

impl Recorded {
    /// The value of a field, or `None`.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields(name).into_iter().next()
    }

    /// All values of a field.
    pub(crate) fn fields(&self, name: &str) -> Vec<&str> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.trim())
            .collect()
    }

    /// Names of all fields, in lower case.
    pub(crate) fn names(&self) -> Vec<String> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .map(|(n, _)| n.to_ascii_lowercase())
            .collect()
    }

    /// The body as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is UTF-8")
    }
}

/// One step of the agent's script for a connection.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Sends bytes.
    Write(Vec<u8>),
    /// Waits, or sees the gateway close.
    Wait(Duration),
    /// The same, until the test adds a permit; in order of arrival.
    Held(Arc<Semaphore>),
    /// Closes in order.
    Close,
    /// Resets the connection.
    Reset,
    /// Sends nothing until the gateway closes.
    Hang,
    /// Sends a request to another address, and passes on the whole response.
    Ask(SocketAddr, Vec<u8>),
}

impl Step {
    pub(crate) fn write(text: impl AsRef<[u8]>) -> Self {
        Self::Write(text.as_ref().to_vec())
    }
}

/// The open connections by number, until the agent is stopped.
type Sockets = Arc<Mutex<Option<HashMap<usize, socket2::Socket>>>>;

type Behaviour = dyn Fn(&Recorded) -> Vec<Step> + Send + Sync;

/// A running agent. Dropping it stops it.
pub(crate) struct Agent {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<Recorded>>>,
    connections: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    closed_by_gateway: Arc<Mutex<Vec<Instant>>>,
    listening: socket2::Socket,
    sockets: Sockets,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Agent {
    /// Answers every call with the same 200 and JSON body.
    pub(crate) async fn json(body: &str) -> Self {
        let answer = ok_json(body);
        Self::scripted(move |_| vec![Step::Write(answer.clone())]).await
    }

    /// Answers each request by the script that `behaviour` returns for it.
    pub(crate) async fn scripted(
        behaviour: impl Fn(&Recorded) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = free_listener("127.0.0.1");
        listener.set_nonblocking(true).expect("a listener");
        Self::over(
            TcpListener::from_std(listener).expect("a runtime"),
            behaviour,
        )
    }

    /// The same at an address and port.
    pub(crate) async fn scripted_at(
        address: &str,
        behaviour: impl Fn(&Recorded) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.expect("a free port");
        Self::over(listener, behaviour)
    }

    fn over(
        listener: TcpListener,
        behaviour: impl Fn(&Recorded) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let port = listener.local_addr().expect("bound").port();
        let listening = same_socket(&listener);
        let requests = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let open = Arc::new(AtomicUsize::new(0));
        let closed = Arc::new(Mutex::new(Vec::new()));
        let behaviour: Arc<Behaviour> = Arc::new(behaviour);
        let sockets: Sockets = Arc::new(Mutex::new(Some(HashMap::new())));
        let shared = (
            requests.clone(),
            connections.clone(),
            open.clone(),
            closed.clone(),
            sockets.clone(),
        );
        let task = tokio::spawn(async move {
            let (requests, connections, open, closed, sockets) = shared;
            let mut serving = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let connection = Connection {
                    number: connections.fetch_add(1, Ordering::SeqCst),
                    requests: requests.clone(),
                    open: open.clone(),
                    closed: closed.clone(),
                    behaviour: behaviour.clone(),
                    sockets: sockets.clone(),
                };
                serving.spawn(connection.serve(stream));
            }
        });
        Self {
            port,
            requests,
            connections,
            open,
            closed_by_gateway: closed,
            listening,
            sockets,
            task,
        }
    }

    /// Stops it: connections are closed, and none is accepted. The tasks that serve them end a moment later; nothing
    /// that is sent from now on reaches them.
    pub(crate) fn stop(&self) {
        let _ = self.listening.shutdown(Shutdown::Both);
        let open = self.sockets.lock().expect("not poisoned").take();
        for socket in open.unwrap_or_default().into_values() {
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.task.abort();
    }

    /// Its address.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Everything it was sent so far.
    pub(crate) fn requests(&self) -> Vec<Recorded> {
        self.requests.lock().expect("not poisoned").clone()
    }

    /// The number of calls so far: requests for its card do not count.
    pub(crate) fn calls(&self) -> usize {
        let requests = self.requests();
        requests
            .iter()
            .filter(|one| one.head.starts_with("POST "))
            .count()
    }

    /// The number of requests that it got so far.
    pub(crate) fn count(&self) -> usize {
        self.requests.lock().expect("not poisoned").len()
    }

    /// Waits until it has got so many calls.
    pub(crate) async fn until_calls(&self, least: usize) {
        let deadline = Instant::now() + NEVER;
        while self.calls() < least {
            assert!(Instant::now() < deadline, "fewer than {least} calls");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until it has got so many requests.
    pub(crate) async fn until_count(&self, least: usize) {
        let deadline = Instant::now() + NEVER;
        while self.count() < least {
            assert!(
                Instant::now() < deadline,
                "the agent got {} of {least} requests",
                self.count()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The last request, taken out of the record.
    pub(crate) fn take(&self) -> Recorded {
        self.requests
            .lock()
            .expect("not poisoned")
            .pop()
            .expect("a request reached the agent")
    }

    /// Connections ever made to it.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Connections open now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Times at which the gateway closed connections during a script.
    pub(crate) fn closed_by_gateway(&self) -> Vec<Instant> {
        self.closed_by_gateway.lock().expect("not poisoned").clone()
    }
}

/// Another handle of a socket.
fn same_socket(socket: &impl AsFd) -> socket2::Socket {
    let handle = socket.as_fd().try_clone_to_owned();
    handle.expect("one more descriptor").into()
}

/// A 200 with an exact length.
pub(crate) fn ok_json(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The head of a chunked stream of events.
pub(crate) const SSE_HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// One chunk of a chunked body.
pub(crate) fn chunk(data: impl AsRef<[u8]>) -> Vec<u8> {
    let data = data.as_ref();
    let mut out = format!("{:x}\r\n", data.len()).into_bytes();
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
    out
}

/// The last chunk.
pub(crate) const LAST_CHUNK: &str = "0\r\n\r\n";

struct Connection {
    number: usize,
    requests: Arc<Mutex<Vec<Recorded>>>,
    open: Arc<AtomicUsize>,
    closed: Arc<Mutex<Vec<Instant>>>,
    behaviour: Arc<Behaviour>,
    sockets: Sockets,
}

impl Connection {
    async fn serve(self, mut stream: TcpStream) {
        match &mut *self.sockets.lock().expect("not poisoned") {
            Some(open) => open.insert(self.number, same_socket(&stream)),
            None => return,
        };
        let _ = stream.set_nodelay(true);
        self.open.fetch_add(1, Ordering::SeqCst);
        let mut held = Vec::new();
        while let Some(request) = self.read(&mut stream, &mut held).await {
            let steps = (self.behaviour)(&request);
            self.requests.lock().expect("not poisoned").push(request);
            if !self.play(&mut stream, steps).await {
                break;
            }
        }
        if let Some(open) = &mut *self.sockets.lock().expect("not poisoned") {
            open.remove(&self.number);
        }
        // Closed before it is counted as closed.
        drop(stream);
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    async fn read(&self, stream: &mut TcpStream, held: &mut Vec<u8>) -> Option<Recorded> {
        let end = loop {
            if let Some(at) = held.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(held).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&held[..end]).into_owned();
        held.drain(..end);
        let mut request = Recorded {
            connection: self.number,
            head,
            body: Vec::new(),
        };
        let length: usize = request
            .field("content-length")
            .map_or(0, |v| v.parse().expect("a length"));
        assert!(
            request.field("transfer-encoding").is_none(),
            "an exact length is promised"
        );
        while held.len() < length {
            if stream.read_buf(held).await.ok()? == 0 {
                return None;
            }
        }
        request.body = held.drain(..length).collect();
        Some(request)
    }

    /// Plays the steps. `false`: the connection is over.
    async fn play(&self, stream: &mut TcpStream, steps: Vec<Step>) -> bool {
        for step in steps {
            match step {
                Step::Write(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        self.note_close();
                        return false;
                    }
                }
                Step::Wait(span) => {
                    if !self.stays(stream, tokio::time::sleep(span)).await {
                        return false;
                    }
                }
                Step::Held(places) => {
                    let place = async { places.acquire().await.expect("never closed").forget() };
                    if !self.stays(stream, place).await {
                        return false;
                    }
                }
                Step::Ask(other, request) => {
                    let asked = async {
                        let mut other = TcpStream::connect(other).await?;
                        other.write_all(&request).await?;
                        tokio::io::copy(&mut other, stream).await
                    };
                    if asked.await.is_err() {
                        return false;
                    }
                }
                Step::Close => return false,
                Step::Reset => {
                    let _ = stream.set_zero_linger();
                    return false;
                }
                Step::Hang => {
                    let mut sink = [0; 1024];
                    while stream.read(&mut sink).await.is_ok_and(|n| n > 0) {}
                    self.note_close();
                    return false;
                }
            }
        }
        true
    }

    /// Waits for `something`. `false`: the gateway closed meanwhile.
    async fn stays(&self, stream: &TcpStream, something: impl Future<Output = ()>) -> bool {
        let mut byte = [0; 1];
        tokio::select! {
            () = something => {}
            read = stream.peek(&mut byte) => if matches!(read, Ok(0) | Err(_)) {
                self.note_close();
                return false;
            }
        }
        true
    }

    fn note_close(&self) {
        self.closed
            .lock()
            .expect("not poisoned")
            .push(Instant::now());
    }
}
