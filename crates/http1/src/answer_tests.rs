//! The reader: cut at every byte, and beside hyper and Pingora's client, which are other readers of the same answers.

use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use pingora::protocols::http::v1::client::HttpSession;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::runtime::{Builder, Runtime};

use super::*;
use http::HeaderMap;

/// A complete answer, as a reader understands it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ParsedAnswer {
    status: u16,
    /// Names in lower case and values, sorted.
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    /// True if the connection may be used again.
    reusable: bool,
}

/// Reads an answer that arrives in these pieces before the agent closes the connection or is silent. `None`: it is
/// refused, or not complete.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, closes: bool) -> Option<ParsedAnswer> {
    let mut answer = AnswerState::default();
    let mut body = Vec::new();
    let end = closes.then_some(&b""[..]);
    for piece in pieces
        .into_iter()
        .filter(|piece| !piece.is_empty())
        .chain(end)
    {
        let mut bytes = piece.to_vec();
        if answer.body.is_none() {
            answer.take_head(&mut bytes).ok()?;
            if answer.body.is_none() {
                continue;
            }
        } else if !answer.is_done() {
            let piece = answer.take_read(&mut bytes);
            body.extend_from_slice(&piece);
        } else if !piece.is_empty() {
            // The pool finds them.
            answer.extra = true;
        }
        while let Some(settled) = answer.next_buffered() {
            match settled.ok()? {
                Some(piece) => body.extend_from_slice(&piece),
                None => break,
            }
        }
    }
    let reusable = answer.is_reusable();
    let head = answer.head.take()?;
    answer.is_done().then(|| ParsedAnswer {
        status: head.fields.status.as_u16(),
        fields: sorted(&head.fields.headers),
        body,
        reusable,
    })
}

fn sorted(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let fields = headers.iter();
    let mut fields: Vec<_> = fields
        .map(|(name, value)| (name.to_string(), spaced(value.as_bytes())))
        .collect();
    fields.sort();
    fields
}

/// A value with one space where there are several: readers replace the ends of folded lines differently.
fn spaced(value: &[u8]) -> Vec<u8> {
    let words = value.split(|b| matches!(b, b' ' | b'\t'));
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join(&b' ')
}

/// Returns the answer as hyper understands it. It does not tell whether it would use the connection again.
async fn by_hyper(bytes: &[u8]) -> Option<ParsedAnswer> {
    let (ours, mut agents) = duplex(64 * 1024);
    let mut client = hyper::client::conn::http1::Builder::new();
    client
        .allow_spaces_after_header_name_in_responses(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .max_headers(256);
    let agent = async {
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            agents.read_buf(&mut asked).await.ok()?;
        }
        agents.write_all(bytes).await.ok()?;
        agents.shutdown().await.ok()
    };
    let caller = async {
        let (mut sender, connection) = client.handshake(TokioIo::new(ours)).await.ok()?;
        let asked = async {
            let request = http::Request::new(Empty::<Bytes>::new());
            let answer = sender.send_request(request).await.ok()?;
            let (head, body) = answer.into_parts();
            let body = body.collect().await.ok()?.to_bytes().to_vec();
            let mut fields = head.headers;
            if fields.contains_key(header::TRANSFER_ENCODING) {
                fields.remove(header::CONTENT_LENGTH);
            }
            Some(ParsedAnswer {
                status: head.status.as_u16(),
                fields: sorted(&fields),
                body,
                reusable: false,
            })
        };
        tokio::join!(asked, connection).0
    };
    tokio::join!(caller, agent).0
}

/// Returns the answer as Pingora's client understands it, which read answers before.
async fn by_pingora(bytes: &[u8], closes: bool) -> Option<ParsedAnswer> {
    let (ours, mut agents) = duplex(bytes.len().max(1));
    agents.write_all(bytes).await.ok()?;
    if closes {
        agents.shutdown().await.ok()?;
    }
    let mut session = HttpSession::new(Box::new(ours));
    let all = async {
        while session
            .resp_header()
            .is_none_or(|head| head.status.is_informational())
        {
            session.read_response().await.ok()?;
            if session.resp_header()?.status == StatusCode::SWITCHING_PROTOCOLS {
                return None;
            }
        }
        let mut body = Vec::new();
        while !session.is_body_done() {
            match session.read_body_bytes().await.ok()? {
                Some(piece) => body.extend_from_slice(&piece),
                None => break,
            }
        }
        let head = session.resp_header()?;
        let (status, fields) = (head.status.as_u16(), sorted(&head.headers));
        session.respect_keepalive();
        let reusable = session.will_keepalive() && session.reuse().await.is_some();
        Some(ParsedAnswer {
            status,
            fields,
            body,
            reusable,
        })
    };
    // What waits for more is not complete.
    let waits = tokio::time::timeout(Duration::from_millis(20), all);
    waits.await.ok().flatten()
}

const GOOD: [&str; 15] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Empty:\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6 ;a=\"b\"\r\n world\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n0000000000000005\r\nhello\r\n0;x\r\nA: b\r\nC: d\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: <a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\nFolded: a\r\n b\r\n\tc\r\nSpaced : d\r\nContent-Length: 1\r\n\r\nx",
    "HTTP/1.1 200\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
    "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
    "HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\nx",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    "HTTP/1.1 500 \r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n\r\n",
    "HTTP/1.1 200 OK\nContent-Length: 1\n\nx",
];

const BAD: [&str; 23] = [
    "",
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
    "HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello!",
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\nhello",
    "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a\n\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n00000000000000005\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nA: b\n\r\n",
    "HTTP/2 200 OK\r\n\r\n",
    "SSH-2.0-OpenSSH\r\n\r\n",
    "\x15\x03\x03\0\x02\x02\x46",
];

#[test]
fn an_answer_is_the_same_however_it_is_cut() {
    for text in GOOD.iter().chain(&BAD) {
        let bytes = text.as_bytes();
        for closes in [true, false] {
            let whole = read([bytes], closes);
            for at in 0..=bytes.len() {
                let (a, b) = bytes.split_at(at);
                assert_eq!(read([a, b], closes), whole, "{text:?} at {at}");
            }
            assert_eq!(read(bytes.chunks(1), closes), whole, "{text:?} by byte");
        }
    }
}

#[test]
fn good_answers_are_read_and_bad_ones_are_not() {
    for text in GOOD {
        assert!(read([text.as_bytes()], true).is_some(), "{text:?}");
    }
    for text in BAD {
        assert_eq!(read([text.as_bytes()], true), None, "{text:?}");
    }
    let chunks = read([GOOD[5].as_bytes()], false).unwrap();
    assert_eq!(chunks.body, b"hello world");
    assert!(chunks.reusable);
}

#[test]
fn a_connection_is_used_again_only_after_a_whole_answer() {
    let reusable = |text: &str| read([text.as_bytes()], false).is_some_and(|read| read.reusable);
    for at in [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12] {
        assert!(reusable(GOOD[at]), "{:?}", GOOD[at]);
    }
    for at in [9, 10, 13] {
        assert!(!reusable(GOOD[at]), "{:?}", GOOD[at]);
    }
    for text in [
        "HTTP/1.1 204 No Content\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n0\r\n\r\n",
    ] {
        assert!(!reusable(text), "{text:?}");
    }
    // A body that ends with the connection.
    let closed = read([&b"HTTP/1.1 200 OK\r\n\r\nall of it"[..]], true).unwrap();
    assert_eq!(
        (&closed.body[..], closed.reusable),
        (&b"all of it"[..], false)
    );
    assert_eq!(
        read([&b"HTTP/1.1 200 OK\r\n\r\nall of it"[..]], false),
        None
    );
    // One that was closed after its answer.
    let closed = read([GOOD[0].as_bytes()], true).unwrap();
    assert!(closed.reusable, "the pool finds that");
}

#[test]
fn what_has_no_end_is_refused_at_its_bound() {
    let head = |length: usize| {
        let mut answer = AnswerState::default();
        let field = format!("X: {}\r\n", "a".repeat(1000));
        let mut bytes = b"HTTP/1.1 200 OK\r\n".to_vec();
        while bytes.len() < length {
            bytes.extend_from_slice(field.as_bytes());
        }
        let mut pieces = bytes.chunks_mut(777);
        pieces.all(|piece| answer.take_head(piece).is_ok())
    };
    assert!(head(ANSWER_HEAD_BYTES_MAX - 2000));
    assert!(!head(ANSWER_HEAD_BYTES_MAX + 2000));
    let mut line = AnswerState::default();
    let endless = (0..100).all(|_| line.take_head(&mut [b'H'; 1000]).is_ok());
    assert!(!endless, "a head of one line");

    let body = |rest: &str, times: usize| {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let pieces = std::iter::repeat_n(rest.as_bytes(), times);
        let mut answer = AnswerState::default();
        answer.take_head(&mut head.to_vec()).unwrap();
        answer.take_read(&mut b"1;".to_vec());
        for piece in pieces {
            answer.take_read(&mut piece.to_vec());
        }
        !matches!(answer.body, Some(BodyState::Broken(_)))
    };
    assert!(body("extension", 900));
    assert!(!body("extension", 1000));
    assert!(body("\r\nx\r\n0\r\nA: b", 1));
    let trailers = format!("\r\nx\r\n0\r\n{}", "A: b\r\n".repeat(10_000));
    assert!(body(&trailers, 1));
    let trailers = format!("\r\nx\r\n0\r\n{}", "A: b\r\n".repeat(11_000));
    assert!(!body(&trailers, 1));
}

#[test]
fn chunks_that_arrive_together_are_one_piece() {
    let mut answer = AnswerState::default();
    answer
        .take_head(
            &mut b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncd"
                .to_vec(),
        )
        .unwrap();
    assert_eq!(answer.first, "abcd");
    answer.first = Bytes::new();
    let piece = answer.take_read(&mut b"e\r\n1\r\nf\r\nnonsense".to_vec());
    assert_eq!(piece, "ef", "what came before the nonsense");
    assert!(matches!(answer.next_buffered(), Some(Err(_))));
}

/// An answer, usually a good one, with what follows it.
fn answer() -> impl Strategy<Value = Vec<u8>> {
    let informational = select(vec![
        "",
        "",
        "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n",
    ]);
    let line = select(vec![
        "HTTP/1.1 200 OK",
        "HTTP/1.1 200 OK",
        "HTTP/1.1 404 ",
        "HTTP/1.1 204 No Content",
        "HTTP/1.1 304 Not Modified",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 503",
    ]);
    let fields = prop::collection::vec(
        select(vec![
            "Content-Type: application/json",
            "Connection: close",
            "Connection: keep-alive",
            "Connection: keep-alive, close",
            "Keep-Alive: timeout=5",
            "X-Folded: a\r\n b",
            "X-Spaced : c",
            "X-Empty:",
            "Content-Length: 3",
        ]),
        0..3,
    );
    let chunks = prop::collection::vec(
        (1_usize..20, select(vec!["", ";a=b", " ", ";a=\"x\""])),
        0..4,
    );
    let chunked = (chunks, select(vec!["\r\n", "A: b\r\n\r\n", ""])).prop_map(|(chunks, end)| {
        let mut body = String::new();
        for (length, extension) in chunks {
            body += &format!("{length:x}{extension}\r\n{}\r\n", "y".repeat(length));
        }
        (
            "Transfer-Encoding: chunked\r\n".to_owned(),
            body + "0\r\n" + end,
        )
    });
    let lengthy = (0_usize..20, 0_usize..20)
        .prop_map(|(length, sent)| (format!("Content-Length: {length}\r\n"), "z".repeat(sent)));
    let exact = (0_usize..20)
        .prop_map(|length| (format!("Content-Length: {length}\r\n"), "z".repeat(length)));
    let closing = Just((String::new(), "until the end".to_owned()));
    let framed = prop_oneof![4 => chunked, 1 => lengthy, 3 => exact, 1 => closing];
    (informational, line, fields, framed).prop_map(|(before, line, fields, (framing, body))| {
        let fields: String = fields.iter().flat_map(|field| [field, "\r\n"]).collect();
        format!("{before}{line}\r\n{fields}{framing}\r\n{body}").into_bytes()
    })
}

/// A change of one place.
fn mutation() -> impl Strategy<Value = Option<(Index, u8, u8)>> {
    let byte = select(b"\r\n :;,0159afx\0\x80\t".to_vec());
    prop::option::of((any::<Index>(), 0_u8..3, byte))
}

/// Says how the reader differs from the others: what it takes, they take, too, and it takes what both of them do.
fn judge(
    bytes: &[u8],
    ours: Option<ParsedAnswer>,
    hyper: Option<ParsedAnswer>,
    pingora: Option<ParsedAnswer>,
) -> Result<(), String> {
    let Some(ours) = ours else {
        return match (hyper, pingora) {
            (Some(hyper), Some(_)) => Err(format!("refused, and others read {hyper:?}")),
            _ => Ok(()),
        };
    };
    let Some(pingora) = pingora else {
        return Err(format!("Pingora refuses {ours:?}"));
    };
    if ours.reusable && !pingora.reusable {
        return Err("used again".to_owned());
    }
    let comparable = ParsedAnswer {
        reusable: false,
        ..ours
    };
    let pingora = ParsedAnswer {
        reusable: false,
        ..pingora
    };
    if comparable != pingora {
        return Err(format!("{comparable:?}, and Pingora {pingora:?}"));
    }
    match hyper {
        Some(hyper) if hyper == comparable => Ok(()),
        None if refused_by_hyper(bytes, &comparable) => Ok(()),
        hyper => Err(format!("{comparable:?}, and hyper {hyper:?}")),
    }
}

/// True for what only hyper refuses: chunks of HTTP/1.0, after which the connection is closed here, and trailers that
/// are no fields, which are skipped here.
fn refused_by_hyper(bytes: &[u8], read: &ParsedAnswer) -> bool {
    let chunked = read
        .fields
        .iter()
        .any(|(name, _)| name == "transfer-encoding");
    let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    chunked && (has(b"HTTP/1.0") || !bytes.ends_with(b"0\r\n\r\n"))
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn what_passes_is_what_other_readers_understand(mut bytes in answer(), mutation in mutation()) {
        if let Some((at, kind, byte)) = mutation {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => { bytes.remove(at); }
            }
        }
        let text = bytes.escape_ascii().to_string();
        let ours = read([&bytes[..]], true);
        let (hyper, pingora) = runtime().block_on(async {
            (by_hyper(&bytes).await, by_pingora(&bytes, true).await)
        });
        if let Err(why) = judge(&bytes, ours, hyper, pingora) {
            prop_assert!(false, "{}: {}", why, text);
        }
    }
}

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
    for _ in 0..ANSWER_HEAD_BYTES_MAX / one.len() {
        answer.take_head(&mut one.to_vec()).unwrap();
    }
    let refused = answer.take_head(&mut one.to_vec()).unwrap_err();
    assert!(matches!(refused, AnswerError::HeadTooLong));
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
