//! The TCP connection to an agent whose name has several addresses: they are tried one after another, each as soon as the
//! one before it has failed or takes long (RFC 8305). Nothing is sent meanwhile. All were checked, and the one that works
//! is tried first from then on.

use std::io::{Error as IoError, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use pingora::connectors::L4Connect;
use pingora::protocols::l4::socket::SocketAddr as PeerAddress;
use pingora::protocols::l4::stream::Stream;
use pingora::{Error, ErrorType};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::directory::AgentAddress;

/// Time after which the next address is tried beside one that does not answer (RFC 8305, 5: recommended).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Dials the addresses of one name. The address of Pingora's peer is the first of them.
#[derive(Debug)]
pub(super) struct Dialling(pub(super) AgentAddress);

#[async_trait]
impl L4Connect for Dialling {
    async fn connect(&self, _: &PeerAddress) -> pingora::Result<Stream> {
        let Self(agent) = self;
        let mut untried = agent.in_order().peekable();
        let mut trying = FuturesUnordered::new();
        let mut first_failure = None;
        loop {
            if let Some(address) = untried.next() {
                trying.push(async move { (address, TcpStream::connect(address).await) });
            }
            tokio::select! {
                biased;
                tried = trying.next() => match tried {
                    Some((address, Ok(stream))) => {
                        agent.note_connected(address);
                        return Ok(stream.into());
                    }
                    Some((address, Err(error))) => {
                        first_failure.get_or_insert((address, error));
                    }
                    None => return Err(connect_error(first_failure)),
                },
                () = sleep(ATTEMPT_DELAY), if untried.peek().is_some() => {}
            }
        }
    }
}

/// Returns the failure of the first address, as Pingora has that of the only one.
fn connect_error(failure: Option<(SocketAddr, IoError)>) -> Box<Error> {
    let Some((address, error)) = failure else {
        return Error::explain(ErrorType::ConnectError, "the agent has no address");
    };
    let kind = match error.kind() {
        ErrorKind::ConnectionRefused => ErrorType::ConnectRefused,
        ErrorKind::TimedOut => ErrorType::ConnectTimedout,
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => ErrorType::ConnectNoRoute,
        _ => ErrorType::ConnectError,
    };
    Error::because(kind, format!("no connection to {address}"), error)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A listener, and an address at which none is.
    async fn open_and_closed() -> (TcpListener, SocketAddr, SocketAddr) {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = socket.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let closed = closed.local_addr().unwrap();
        (socket, open, closed)
    }

    async fn connect(agent: &AgentAddress) -> pingora::Result<Stream> {
        let ignored = PeerAddress::Inet(agent.first);
        Dialling(agent.clone()).connect(&ignored).await
    }

    #[tokio::test]
    async fn the_next_address_is_tried_where_one_refuses_and_is_the_first_from_then_on() {
        let (socket, open, closed) = open_and_closed().await;
        let agent = AgentAddress::for_tests(&[closed, open]);
        assert!(connect(&agent).await.is_ok());
        assert!(socket.accept().await.is_ok());
        assert_eq!(agent.preferred(), Some(open.ip()));
    }

    #[tokio::test]
    async fn the_next_address_is_tried_beside_one_that_does_not_answer() {
        let (_socket, open, _) = open_and_closed().await;
        // A listener with a full queue answers no further SYN.
        let silent = tokio::net::TcpSocket::new_v4().unwrap();
        silent.bind("127.0.0.3:0".parse().unwrap()).unwrap();
        let silent = silent.listen(1).unwrap();
        let at = silent.local_addr().unwrap();
        let mut waiting = Vec::new();
        for _ in 0..4 {
            waiting.push(tokio::spawn(TcpStream::connect(at)));
        }
        let agent = AgentAddress::for_tests(&[at, open]);
        while connect(&agent).await.is_ok() && agent.preferred().is_none() {}
        assert_eq!(agent.preferred(), Some(open.ip()));
    }

    #[tokio::test]
    async fn without_any_the_failure_is_that_of_the_first() {
        let (_socket, _, closed) = open_and_closed().await;
        let agent = AgentAddress::for_tests(&[closed, closed]);
        let why = connect(&agent).await.err().unwrap();
        assert_eq!(*why.etype(), ErrorType::ConnectRefused);
    }
}
