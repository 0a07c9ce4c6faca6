//! Parts, in requests and in answers.

use super::*;

/// Returns one part of a request as the agent gets it.
fn part(bridge: &Bridge<'_>, part: &str) -> String {
    let method = Method::SendMessage;
    let said = params(
        bridge,
        method,
        &format!(r#"{{"message":{{"parts":[{part}]}}}}"#),
    );
    let (_, rest) = said.split_once(r#""parts":["#).unwrap();
    rest.split_once("]")
        .map_or(rest, |_| &rest[..rest.rfind(']').unwrap()])
        .to_owned()
}

#[test]
fn parts_go_up_and_come_down() {
    for (v0, v1) in [
        (r#"{"kind":"text","text":""}"#, r#"{"text":""}"#),
        (
            r#"{"kind":"text","text":"\u00e4\/","metadata":{"n":1e2}}"#,
            r#"{"text":"\u00e4\/","metadata":{"n":1e2}}"#,
        ),
        (
            r#"{"kind":"file","file":{"bytes":"+/A=","mimeType":"a/b","name":"n"}}"#,
            r#"{"raw":"+/A=","mediaType":"a/b","filename":"n"}"#,
        ),
        (
            r#"{"kind":"file","file":{"uri":"u"},"metadata":{}}"#,
            r#"{"url":"u","metadata":{}}"#,
        ),
        (
            r#"{"kind":"data","data":{"a":[10,9007199254740993,1.0]}}"#,
            r#"{"data":{"a":[10,9007199254740993,1.0]}}"#,
        ),
        // It is not unwrapped without the flag.
        (
            r#"{"kind":"data","data":{"value":1}}"#,
            r#"{"data":{"value":1}}"#,
        ),
        (
            r#"{"kind":"data","data":{"value":9007199254740993},"metadata":{"data_part_compat":true}}"#,
            r#"{"data":9007199254740993}"#,
        ),
        (
            r#"{"kind":"data","data":{"value":[ 1 ]},"metadata":{"a":1.0,"data_part_compat":true}}"#,
            r#"{"data":[ 1 ],"metadata":{"a":1.0}}"#,
        ),
        (
            r#"{"kind":"data","data":{"value":null},"metadata":{"data_part_compat":true}}"#,
            r#"{"data":null}"#,
        ),
        (
            r#"{"kind":"data","data":{"value":"x"},"metadata":{"data_part_compat":true}}"#,
            r#"{"data":"x"}"#,
        ),
    ] {
        assert_eq!(part(&UP, v0), v1);
        assert_eq!(part(&DOWN, v1), v0);
    }
}

#[test]
fn a_part_is_read_by_its_kind_or_else_by_its_members() {
    for (v0, v1) in [
        (r#"{"text":"a"}"#, r#"{"text":"a"}"#),
        (r#"{"type":"text","text":"a"}"#, r#"{"text":"a"}"#),
        (
            r#"{"file":{"uri":"u","bytes":"AA=="}}"#,
            r#"{"raw":"AA=="}"#,
        ),
        (r#"{"text":"a","data":{},"kind":"data"}"#, r#"{"data":{}}"#),
        (r#"{"text":null,"data":{}}"#, r#"{"data":{}}"#),
        (
            r#"{"kind":"text","text":"a","metadata":null}"#,
            r#"{"text":"a"}"#,
        ),
        (r#"{"\u006bind":"text","te\u0078t":"a"}"#, r#"{"text":"a"}"#),
        (
            r#"{"data":{"a":1},"metadata":{"data_part_compat":false}}"#,
            r#"{"data":{"a":1},"metadata":{"data_part_compat":false}}"#,
        ),
        (
            r#"{"data":[1],"metadata":{"data_part_compat":true}}"#,
            r#"{"data":[1]}"#,
        ),
    ] {
        assert_eq!(part(&UP, v0), v1);
    }
    for (v1, v0) in [
        // The alphabet of URLs, without padding.
        (
            r#"{"raw":"-_8"}"#,
            r#"{"kind":"file","file":{"bytes":"+/8="}}"#,
        ),
        (
            r#"{"raw":"aGVsbG8"}"#,
            r#"{"kind":"file","file":{"bytes":"aGVsbG8="}}"#,
        ),
        (
            r#"{"raw":"\/w"}"#,
            r#"{"kind":"file","file":{"bytes":"/w=="}}"#,
        ),
        (
            r#"{"raw":"-_8="}"#,
            r#"{"kind":"file","file":{"bytes":"+/8="}}"#,
        ),
        (
            r#"{"data":{},"metadata":{}}"#,
            r#"{"kind":"data","data":{},"metadata":{}}"#,
        ),
        (
            r#"{"url":"u","mediaType":"","filename":null}"#,
            r#"{"kind":"file","file":{"uri":"u"}}"#,
        ),
        (
            r#"{"url":"u","media_type":"a/b"}"#,
            r#"{"kind":"file","file":{"uri":"u","mimeType":"a/b"}}"#,
        ),
        (
            r#"{"data":1,"metadata":{"data_part_compat":0,"a":1}}"#,
            r#"{"kind":"data","data":{"value":1},"metadata":{"a":1,"data_part_compat":true}}"#,
        ),
    ] {
        assert_eq!(part(&DOWN, v1), v0);
    }
}

#[test]
fn what_a_part_loses_is_counted() {
    let sent =
        r#"{"message":{"parts":[{"text":"a","mediaType":"a/b","filename":"n","url":"u","x":1}]}}"#;
    let (sent, _) = request(&DOWN, Method::SendMessage, sent).unwrap();
    let left: Vec<_> = sent.left_out.iter().collect();
    let once = |name| ("part", name, 1);
    assert_eq!(
        left,
        [
            once("other"),
            once("content"),
            once("mediaType"),
            once("filename")
        ]
    );
}

#[test]
fn a_part_without_content_is_refused_or_left_out() {
    for (bridge, empty) in [
        (UP, r#"{"kind":"form","form":{}}"#),
        (DOWN, r#"{"form":{}}"#),
    ] {
        let sent = format!(r#"{{"message":{{"parts":[{empty}]}}}}"#);
        let failure = request(&bridge, Method::SendMessage, &sent).unwrap_err();
        assert_eq!(failure, Failure::Params("part"));
    }
    let sent = r#"{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"form":{}},{"text":"a"},{}]}}"#;
    let (said, left) = answered(&UP, Method::SendMessage, sent).unwrap();
    let expected =
        r#"{"kind":"message","messageId":"m","role":"agent","parts":[{"kind":"text","text":"a"}]}"#;
    assert_eq!(said, expected);
    assert_eq!(
        left.iter().collect::<Vec<_>>(),
        [("part", "other", 1), ("part", "part", 2)]
    );
}
