//! What whoever comes back is sent: everything it missed, byte for byte, or how much is missing.

use std::time::Duration;

use super::{Case, ended, ends, pausing, plain, rest, resume, streaming};
use crate::harness::{Agent, Connection, Request, Step, unnumbered, until_holds};

/// Events of every shape, with comments between them.
fn thousand(line_end: &str) -> Vec<String> {
    let events = (1..=1000).map(|n| {
        let event = match n % 7 {
            0 => format!("id: own-{n}\ndata: {n}\n\n"),
            1 => format!("data: {{\"n\":{n},\ndata: \"more\":true}}\n\n"),
            2 => format!("event: update\ndata: {n}\n\n: ping {n}\n\n"),
            3 => format!("data: {n}\nid: own-{n}\n\n"),
            4 => format!(": about {n}\ndata:{n} ü\n\n"),
            _ => format!("data: {n}\n\n"),
        };
        event.replace('\n', line_end)
    });
    // In chunks of every length: events come cut and together.
    let all: String = events.collect();
    let mut chunks = Vec::new();
    let mut rest = all.as_str();
    for length in [7, 300, 1, 64, 1500].into_iter().cycle() {
        let mut at = length.min(rest.len());
        while !rest.is_char_boundary(at) {
            at += 1;
        }
        let (chunk, behind) = rest.split_at(at);
        chunks.push(chunk.to_owned());
        rest = behind;
        if rest.is_empty() {
            return chunks;
        }
    }
    chunks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_behind_each_of_a_thousand_events_and_resumed_a_stream_is_the_uncut_one() {
    for line_end in ["\n", "\r\n"] {
        let chunks = thousand(line_end);
        let sent = chunks.concat();
        let agent = streaming(chunks, ended()).await;
        let case = Case::with("", agent).await;
        let (whole, stream) = case.whole().await;
        // A blank line behind a comment would be an event to some readers (`a2a::stamp`).
        let mut joined = String::new();
        for block in sent.replace(line_end, "\n").split("\n\n") {
            let is_comment = block.starts_with(": ping");
            joined += block;
            joined += if is_comment { "\n" } else { "\n\n" };
        }
        let expected = joined.strip_suffix("\n\n").unwrap();
        let expected = expected.replace('\n', line_end);
        assert_eq!(unnumbered(&whole).0, expected, "only numbers are added");
        let ends = ends(&whole, &stream);
        assert_eq!(ends.len(), 1000);
        let mut connection = Connection::open(case.gateway.public).await;
        for (after, end) in std::iter::once(&0).chain(&ends).enumerate() {
            let request = case.behind(&stream, after);
            let answer = connection.call(&request).await.has(200);
            assert!(answer.whole);
            // Comments behind an event come with the next one.
            let text = answer.text();
            assert!(whole[*end..] == text, "after {after}: {text}");
        }
        assert_eq!(case.target.agent.count(), 1, "the agent is not asked again");
    }
}

#[tokio::test]
async fn a_reader_gets_what_it_missed_and_follows_to_the_end() {
    let mut events = plain(1..=3);
    events.push(String::new());
    events.extend(plain(4..=6));
    events.push(String::new());
    events.extend(plain(7..=9));
    let sent = events.concat();
    let agent = pausing(events, Step::Wait(Duration::from_millis(200)), ended()).await;
    let case = Case::with("", agent).await;
    for cut in [1, 3, 6] {
        let (seen, stream) = case.left_behind(&format!("data: {cut}\n")).await;
        let had = ends(&seen, &stream);
        let answer = case.resumed(&stream, had.len()).await;
        assert_eq!(answer.field("content-type"), Some("text/event-stream"));
        assert_eq!(answer.field("cache-control"), Some("no-cache"));
        assert_eq!(answer.field("x-accel-buffering"), Some("no"));
        let (joined, name) = unnumbered(&(seen + &answer.text()));
        assert_eq!((joined, name), (sent.clone(), stream), "cut behind {cut}");
        case.gateway.assert_idle().await;
    }
}

#[tokio::test]
async fn what_the_bounds_passed_over_is_told_as_a_gap() {
    let event = |n: usize| format!("data: {n:0>90}\n\n");
    for key in ["stream.log_events=10", "stream.log_bytes=1430"] {
        let agent = streaming((1..=30).map(event).collect(), ended()).await;
        let case = Case::with(key, agent).await;
        let (whole, stream) = case.whole().await;
        let ends = ends(&whole, &stream);
        // The last ten are there: 143 bytes each with their numbers.
        for (after, missed) in [(0, 20), (5, 15), (19, 1)] {
            let text = case.resumed(&stream, after).await.text();
            let gap = format!("event: gap\ndata: {{\"missed\":{missed}}}\n\n");
            assert_eq!(text, gap + &whole[ends[19]..], "{key}, after {after}");
        }
        for after in [20, 25, 30] {
            let text = case.resumed(&stream, after).await.text();
            assert_eq!(text, whole[ends[after - 1]..], "{key}, after {after}");
        }
        let first = case.gateway.call(&case.resume(&stream)).await.text();
        assert!(first.starts_with("event: gap\ndata: {\"missed\":20}\n\n"));
    }
}

#[tokio::test]
async fn an_event_larger_than_the_log_leaves_nothing_before_it() {
    let mut events = plain(1..=3);
    events.push(format!("data: {}\n\n", "x".repeat(5000)));
    events.extend(plain(5..=6));
    let agent = streaming(events, ended()).await;
    let case = Case::with("stream.log_bytes=4KiB", agent).await;
    let (whole, stream) = case.whole().await;
    let text = case.resumed(&stream, 1).await.text();
    let ends = ends(&whole, &stream);
    let gap = "event: gap\ndata: {\"missed\":3}\n\n".to_owned();
    assert_eq!(text, gap + &whole[ends[3]..]);
}

#[tokio::test]
async fn a_stream_is_for_its_caller_alone_and_nobody_learns_of_it() {
    let agent = streaming(plain(1..=2), ended()).await;
    let case = Case::with("", agent).await;
    let (whole, stream) = case.whole().await;
    let agent = Agent::json("{}").await;
    let other = case.gateway.seat("other", "", agent).await;
    let unknown = "0".repeat(32);
    let refused = async |request: Request| {
        let answer = case.gateway.call(&request).await;
        (answer.status, answer.json()["error"].clone())
    };
    let none = refused(case.resume(&unknown)).await;
    assert_eq!(none.0, 404);
    let elsewhere = Request::get(format!("/workspaces/other/streams/{stream}"));
    for (request, what) in [
        (resume(&stream).bearer(&other.token), "another caller's"),
        (elsewhere.bearer(&case.caller.token), "of another target"),
        (case.resume(&stream.to_uppercase()), "another spelling"),
        (case.resume("nothing"), "no id"),
    ] {
        assert_eq!(refused(request).await, none, "{what}");
    }
    // The operator did not ask for it either.
    let answer = case.gateway.as_operator(resume(&stream)).await;
    answer.refuses(404, "not_found");
    case.gateway.call(&resume(&stream)).await.has(401);
    for bad in ["7", "x-1", &format!("{stream}-"), &format!("{stream}-+1")] {
        let request = case.resume(&stream).field("Last-Event-ID", bad);
        let answer = case.gateway.call(&request).await;
        let refused = (answer.status, answer.reason());
        assert_eq!(refused, (400, "invalid_params".into()), "{bad}");
    }
    let by_query = format!("/workspaces/target/streams/{stream}?last_event_id={stream}-1");
    let request = Request::get(by_query).bearer(&case.caller.token);
    let answer = case.gateway.call(&request).await;
    assert_eq!(answer.text(), whole[ends(&whole, &stream)[0]..]);
    // Who may not reach the target any more does not hear from it either.
    let moved = serde_json::json!({"org": "elsewhere"});
    assert_eq!(case.gateway.patch("target", moved).await.status, 200);
    let answer = case.gateway.call(&case.resume(&stream)).await;
    answer.refuses(403, "not_permitted");
}

#[tokio::test]
async fn with_logs_off_events_have_no_ids() {
    let agent = streaming(plain(1..=2), ended()).await;
    let case = Case::with("stream.log_events=0", agent).await;
    let answer = case.gateway.call(&case.request()).await;
    assert_eq!(answer.text(), plain(1..=2).concat());
}

#[tokio::test]
async fn what_all_logs_take_is_bounded_and_the_oldest_go_first() {
    let event = format!("data: {}\n\n", "x".repeat(20_000));
    let agent = streaming(vec![event], ended()).await;
    // The only caller has half of it.
    let case = Case::with("stream.logs_bytes=128KiB stream.log_bytes=21KiB", agent).await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(case.whole().await.1);
        let held = "a2a_gateway_stream_log_bytes";
        let held = case.gateway.metric(held, &[]).await;
        assert!(held <= 65_536.0, "{held}");
    }
    let mut found = Vec::new();
    for stream in &streams {
        found.push(case.gateway.call(&case.resume(stream)).await.status);
    }
    assert_eq!(found, [404, 404, 200, 200, 200]);
}

#[tokio::test]
async fn where_there_is_no_room_a_stream_passes_without_ids_and_is_counted() {
    let agent = streaming(plain(1..=2), ended()).await;
    let case = Case::with("stream.logs_bytes=100", agent).await;
    let answer = case.gateway.call(&case.request()).await;
    assert_eq!(answer.text(), plain(1..=2).concat());
    let name = "a2a_gateway_streams_unresumable_total";
    assert!(case.gateway.metric(name, &[]).await >= 1.0);
}

#[tokio::test]
async fn a_log_is_forgotten_after_its_time() {
    let agent = streaming(plain(1..=2), ended()).await;
    let case = Case::with("stream.log_ttl=1s", agent).await;
    let stream = case.whole().await.1;
    let is_gone = async || case.resumed(&stream, 1).await.status == 404;
    until_holds("the log is forgotten", is_gone).await;
}

/// Its last event is numbered and kept like the agent's, and with its id a caller comes back for nothing.
#[tokio::test]
async fn the_gateways_own_last_event_is_resumed_too() {
    let agent = streaming(plain(1..=2), Step::Reset).await;
    let case = Case::with("", agent).await;
    let (whole, stream) = case.whole().await;
    let ends = ends(&whole, &stream);
    assert_eq!(ends.len(), 3, "{whole}");
    assert!(whole[ends[1]..].contains("AGENT_PROTOCOL_ERROR"));
    assert_eq!(case.resumed(&stream, 2).await.text(), whole[ends[1]..]);
    assert_eq!(case.resumed(&stream, 3).await.text(), "");
}

#[tokio::test]
async fn readers_are_bounded_and_end_with_their_credential_and_with_the_gateway() {
    let agent = streaming(plain(1..=2), Step::Hang).await;
    let case = Case::with("stream.readers=32", agent).await;
    let (_, stream) = case.left_behind("data: 2\n").await;
    let mut one = case.follow(&case.gateway, &stream).await;
    let two = case.follow(&case.gateway, &stream).await;
    // A sixteenth of them is one caller's.
    let third = case.gateway.call(&case.resume(&stream)).await;
    third.refuses(503, "overloaded");
    drop(two);
    let tokens = format!("/workspaces/{}/tokens", case.caller.id);
    let listed = case.gateway.as_operator(Request::get(&tokens)).await.json();
    let id = listed["tokens"][0]["id"].as_str().unwrap().to_owned();
    let revoke = Request::new("DELETE", format!("{tokens}/{id}"));
    assert!(case.gateway.as_operator(revoke).await.status < 300);
    let seen = rest(&mut one).await;
    assert!(seen.starts_with("data: 1\nid: "), "{seen}");
    // Its own credential is that of the stream: either says so first.
    let told = seen.to_lowercase();
    assert!(told.contains("\"unauthenticated\""), "{seen}");
}
