//! `a2a::bridge`: one text as a request, as an answer and as a stream. The first byte of an input chooses the two
//! sides, the second one the method.

use a2a_gateway::a2a::Generation;
use a2a_gateway::a2a::bridge::{Bridge, Call, Exchange, FileBytes, Side, TranslatedEvent};
use a2a_gateway::a2a::event::{Splitter, split_blocks};
use a2a_gateway::a2a::method::Method;
use a2a_gateway::a2a::rest;
use bytes::Bytes;
use serde::de::IgnoredAny;

const SIDES: [Side; 4] = [
    Side::json_rpc(Generation::V0),
    Side::json_rpc(Generation::V1),
    Side::http_json(Generation::V0),
    Side::http_json(Generation::V1),
];

/// Bytes that a text may grow by, besides four times its length and what one part takes.
const GROWTH_BYTES: usize = (1024 + 64) * 1024;

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some(([sides, method], text)) = input.split_first_chunk() else {
        return;
    };
    let [caller, agent] = [sides & 3, sides >> 2 & 3].map(|side| SIDES[usize::from(side)]);
    let method = Method::ALL[usize::from(*method) % Method::ALL.len()];
    let bridge = Bridge {
        caller,
        agent,
        tenant: (sides & 16 != 0).then_some("a/\"b"),
        files: [FileBytes::Once, FileBytes::Twice][usize::from(sides & 32 != 0)],
    };
    request(&bridge, method, text);
    let exchange = Exchange::new(caller, agent, method, Some("7".to_owned()));
    answer(&exchange, method, text);
    let whole = stream(&exchange, text, usize::MAX);
    assert_eq!(whole, stream(&exchange, text, 1), "byte by byte");
    assert_eq!(whole, stream(&exchange, text, 7), "in pieces");
}

fn request(bridge: &Bridge<'_>, method: Method, text: &[u8]) {
    if let Ok((sent, _)) = bridge.translate_request(method, Call::Rpc(text)) {
        assert!(
            sent.body.is_empty() || is_json(&sent.body),
            "a request that is no JSON"
        );
        if let Some(target) = sent.target {
            // The gateway's own reading of a route is the strictest.
            let (path, query) = target
                .split_once('?')
                .map_or((&*target, None), |(path, query)| (path, Some(query)));
            let path = path.strip_prefix("a%2F%22b/").unwrap_or(path);
            let read = rest::parse_request(sent.verb, path, query);
            assert_eq!(read.map(|rest| rest.method), Ok(method), "{target}");
        }
    }
    // A body behind a route.
    let (tail, body) = match text.iter().position(|byte| *byte == b' ') {
        Some(space) => (&text[..space], &text[space..]),
        None => (text, &[][..]),
    };
    let Ok(tail) = std::str::from_utf8(tail) else {
        return;
    };
    let call = Call::Rest {
        tail,
        query: None,
        body,
    };
    if let Ok((sent, _)) = bridge.translate_request(method, call) {
        assert!(
            sent.body.is_empty() || is_json(&sent.body),
            "a request that is no JSON"
        );
    }
}

fn answer(exchange: &Exchange, method: Method, text: &[u8]) {
    for status in [200, 404] {
        let Ok(answer) = exchange.translate_answer(status, text) else {
            continue;
        };
        if answer.content_type.is_none() {
            assert_eq!(answer.body, text, "passed on as it came");
            continue;
        }
        assert!(is_json(&answer.body), "an answer that is no JSON");
        assert!(
            answer.body.len() <= 4 * text.len() + GROWTH_BYTES,
            "it grew to {}",
            answer.body.len()
        );
        assert!(answer.status < 600);
        let _ = method;
    }
}

/// The translation of a stream.
type Outcome = (Vec<u8>, Vec<Result<TranslatedEvent, i64>>);

fn stream(exchange: &Exchange, text: &[u8], piece: usize) -> Outcome {
    let (mut splitter, mut stream) = (Splitter::new(), exchange.start_stream());
    let (mut out, mut told) = (Vec::new(), Vec::new());
    for chunk in text.chunks(piece.min(text.len().max(1))) {
        let passed = splitter.push(Bytes::copy_from_slice(chunk));
        for block in split_blocks(&passed.bytes) {
            let before = out.len();
            let one = stream.translate_block(block, &mut out);
            assert!(
                one.is_ok() || out.len() == before,
                "a block that has no translation wrote something"
            );
            told.push(one.map_err(|failure| failure.code()));
        }
    }
    (out, told)
}

/// Lone surrogates are in the grammar, too.
fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}
