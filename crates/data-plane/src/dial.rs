//! The TCP connection to an agent with several addresses of its name: they are tried one after another, each as soon as
//! the one before it has failed or takes long (RFC 8305). Nothing is sent meanwhile. All were checked, and the one that
//! works is tried first from then on.

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

use directory::AgentAddress;

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
