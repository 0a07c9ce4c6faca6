//! The reader while it waits, and its bounds and clocks.

use std::time::Duration;

use tokio::io::{AsyncWriteExt as _, duplex};
use tokio::time::Instant;

use super::super::{AnswerReader, AnswerState, HEAD_BYTES_MAX};
use super::GOOD;
use crate::drain::Drain;
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::relay::{CancelWatch, Clocks, next_piece};
use crate::rejection::Reason;

#[tokio::test]
async fn a_read_that_is_dropped_loses_nothing() {
    let (ours, mut agents) = duplex(64);
    let mut reader = AnswerReader::new(Box::new(ours));
    let text = GOOD[6].as_bytes();
    let mut body = Vec::new();
    for byte in text {
        agents.write_all(&[*byte]).await.unwrap();
        // Each wait is dropped once it would wait.
        let waited = tokio::time::timeout(Duration::ZERO, reader.read_head()).await;
        if !matches!(waited, Ok(Ok(()))) {
            continue;
        }
        let waited = tokio::time::timeout(Duration::ZERO, reader.read_piece()).await;
        if let Ok(Ok(Some(piece))) = waited {
            body.extend_from_slice(&piece);
        }
    }
    assert_eq!(body, b"hello");
    assert!(reader.is_done());
    assert_eq!(reader.take_head().unwrap().fields.status, 200);
    assert!(reader.into_reusable().is_some());
}

#[test]
fn informational_heads_are_bounded_together() {
    let one = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut answer = AnswerState::default();
    for _ in 0..HEAD_BYTES_MAX / one.len() {
        answer.take_head(&mut one.to_vec()).unwrap();
    }
    let refused = answer.take_head(&mut one.to_vec()).unwrap_err();
    assert_eq!(refused.reason, Reason::AgentProtocolError);
}

#[tokio::test]
async fn a_piece_that_is_ready_after_the_last_clock_is_not_passed() {
    let (ours, mut agents) = duplex(1024);
    let mut reader = AnswerReader::new(Box::new(ours));
    let begun = b"HTTP/1.1 200 OK\r\n\r\n";
    agents.write_all(begun).await.unwrap();
    reader.read_head().await.unwrap();
    agents.write_all(b"more").await.unwrap();
    let mut cut = CancelWatch::for_drain(&Drain::default());
    let now = Instant::now();
    let mut clocks = Clocks {
        head: Duration::from_secs(1),
        idle: Duration::from_secs(1),
        total: now + Duration::from_secs(60),
        stream: now,
    };
    let piece = next_piece(None, &mut reader, &clocks, &mut cut).await;
    assert_eq!(piece.ok().flatten().as_deref(), Some(&b"more"[..]));
    agents.write_all(b"more").await.unwrap();
    clocks.total = now;
    let late = next_piece(None, &mut reader, &clocks, &mut cut).await;
    assert!(
        matches!(late, Err(ExchangeOutcome::Refused(why)) if why.reason == Reason::AgentTimeout)
    );
}

#[tokio::test]
async fn what_waits_holds_no_buffer() {
    let (ours, mut agents) = duplex(64 * 1024);
    let mut reader = AnswerReader::new(Box::new(ours));
    let waited = tokio::time::timeout(Duration::from_millis(1), reader.read_head());
    assert!(waited.await.is_err());
    assert_eq!(reader.answer.begun.capacity(), 0);
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;ext";
    agents.write_all(head).await.unwrap();
    reader.read_head().await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(1), reader.read_piece());
    assert!(waited.await.is_err());
    assert_eq!(reader.answer.begun.capacity(), 0);
    assert!(reader.answer.first.is_empty());
}
