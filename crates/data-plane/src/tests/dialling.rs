//! The addresses of one name, dialled one after another.

use std::net::SocketAddr;

use pingora::connectors::L4Connect as _;
use pingora::protocols::l4::socket::SocketAddr as PeerAddress;
use pingora::protocols::l4::stream::Stream;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::dial::Dialling;
use directory::AgentAddress;

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
    let silent = TcpSocket::new_v4().unwrap();
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
    assert_eq!(*why.etype(), pingora::ErrorType::ConnectRefused);
}
