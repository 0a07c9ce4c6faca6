//! `http1`'s reader of agents' answers. The input is what an agent sends before it closes the connection.

use std::cell::RefCell;

use a2a_gateway::http1::AnswerReader;
use pingora::http::ResponseHeader;
use pingora::protocols::Stream;
use pingora::protocols::http::v1::client::HttpSession;
use tokio::io::{AsyncWriteExt, duplex};
use tokio::runtime::{Builder, Runtime};

/// Longest input that also comes byte by byte.
const BY_BYTE_MAX: usize = 2048;

thread_local! {
    static RUNTIME: RefCell<Runtime> = RefCell::new(
        Builder::new_current_thread().enable_all().build().expect("a runtime"),
    );
}

/// An answer as a reader understands it.
#[derive(Debug, PartialEq, Eq)]
struct Understood {
    status: u16,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    whole: bool,
    reusable: bool,
}

/// Runs one input.
pub fn run(input: &[u8]) {
    RUNTIME.with_borrow(|runtime| {
        runtime.block_on(async {
            let ours = by_us(input, input.len().max(1)).await;
            if input.len() <= BY_BYTE_MAX {
                let bytewise = by_us(input, 1).await;
                // Bytes after a body that come later are found by the pool.
                let same = |understood: &Option<Understood>| {
                    understood.as_ref().map(|understood| {
                        let Understood {
                            status,
                            fields,
                            body,
                            whole,
                            ..
                        } = understood;
                        (*status, fields.clone(), body.clone(), *whole)
                    })
                };
                assert_eq!(same(&bytewise), same(&ours), "byte by byte");
            }
            let Some(ours) = ours else { return };
            let theirs = by_pingora(input)
                .await
                .expect("Pingora reads the head, too");
            assert_eq!(ours.status, theirs.status);
            assert_eq!(ours.fields, theirs.fields);
            if ours.whole {
                assert!(theirs.whole, "a body without an end");
                assert_eq!(ours.body, theirs.body);
            }
            assert!(ours.whole || !ours.reusable);
            assert!(theirs.reusable || !ours.reusable, "used again");
        });
    });
}

/// A connection on which the agent sends the input, at most `at_once` bytes at a time.
async fn of_agent<T>(input: &[u8], at_once: usize, read: impl AsyncFnOnce(Stream) -> T) -> T {
    let (ours, mut agents) = duplex(at_once);
    let sends = async {
        // It may be refused before its end.
        let _ = agents.write_all(input).await;
        let _ = agents.shutdown().await;
    };
    tokio::join!(read(Box::new(ours)), sends).0
}

async fn by_us(input: &[u8], at_once: usize) -> Option<Understood> {
    of_agent(input, at_once, async |stream| {
        let mut reader = AnswerReader::new(stream);
        reader.read_head().await.ok()?;
        let head = reader.take_head().ok()?;
        assert!(!head.fields.status.is_informational());
        assert!(head.bytes <= input.len());
        let mut body = Vec::new();
        let whole = loop {
            match reader.read_piece().await {
                Ok(Some(piece)) => {
                    assert!(!piece.is_empty(), "an empty piece");
                    body.extend_from_slice(&piece);
                }
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        assert_eq!(reader.is_done(), whole);
        Some(Understood {
            status: head.fields.status.as_u16(),
            fields: sorted(&head.fields),
            body,
            whole,
            reusable: reader.into_reusable().is_some(),
        })
    })
    .await
}

async fn by_pingora(input: &[u8]) -> Option<Understood> {
    of_agent(input, input.len().max(1), async |stream| {
        let mut session = HttpSession::new(stream);
        while session
            .resp_header()
            .is_none_or(|head| head.status.is_informational())
        {
            session.read_response().await.ok()?;
        }
        let mut body = Vec::new();
        let whole = loop {
            if session.is_body_done() {
                break true;
            }
            match session.read_body_bytes().await {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let head = session.resp_header()?;
        let (status, fields) = (head.status.as_u16(), sorted(head));
        session.respect_keepalive();
        let reusable = session.will_keepalive() && session.reuse().await.is_some();
        Some(Understood {
            status,
            fields,
            body,
            whole,
            reusable,
        })
    })
    .await
}

fn sorted(head: &ResponseHeader) -> Vec<(String, Vec<u8>)> {
    let fields = head.headers.iter();
    let mut fields: Vec<_> = fields
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect();
    fields.sort();
    fields
}
