//! Bindings: HTTP+JSON in front of JSON-RPC and the other way round, in each generation.

use super::*;

use Method::*;

fn rest<'a>(tail: &'a str, query: Option<&'a str>, body: &'a str) -> Call<'a> {
    Call::Rest {
        tail,
        query,
        body: body.as_bytes(),
    }
}

/// Returns method and parameters of the call that a JSON-RPC agent gets.
fn as_call(bridge: &Bridge<'_>, method: Method, call: Call<'_>) -> (String, String) {
    let (sent, _) = bridge.translate_request(method, call).unwrap();
    assert_eq!((sent.verb, &sent.target), ("POST", &None));
    let body = String::from_utf8(sent.body).unwrap();
    let rest = body
        .strip_prefix(r#"{"jsonrpc":"2.0","id":1,"method":""#)
        .unwrap();
    let (method, params) = rest.split_once(r#"","params":"#).unwrap();
    (
        method.to_owned(),
        params.strip_suffix('}').unwrap().to_owned(),
    )
}

/// Returns the request that an agent with HTTP+JSON gets, in one line.
fn as_route(bridge: &Bridge<'_>, method: Method, params: &str) -> String {
    let (sent, _) = request(bridge, method, params).unwrap_or_else(|f| panic!("{params}: {f}"));
    let body = String::from_utf8(sent.body).unwrap();
    format!("{} {} {body}", sent.verb, sent.target.unwrap())
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn routes_become_calls_of_either_generation() {
    let message = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}"#;
    for (method, tail, query, body, v0, v1) in [
        (
            SendMessage,
            "message:send",
            None,
            message,
            r#"{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}]}}"#,
            message,
        ),
        (
            GetTask,
            "tasks/t%3A1",
            None,
            "",
            r#"{"id":"t:1"}"#,
            r#"{"id":"t:1"}"#,
        ),
        (
            GetTask,
            "tasks/t",
            Some("historyLength=3&A2A-Version=1.0"),
            "",
            r#"{"id":"t","historyLength":3}"#,
            r#"{"id":"t","historyLength":3}"#,
        ),
        (
            GetTask,
            "tasks/t",
            Some("history_length=0"),
            "",
            r#"{"id":"t"}"#,
            r#"{"id":"t","historyLength":0}"#,
        ),
        (
            CancelTask,
            "tasks/a%20b:cancel",
            None,
            "",
            r#"{"id":"a b"}"#,
            r#"{"id":"a b"}"#,
        ),
        (
            CancelTask,
            "tasks/t:cancel",
            None,
            r#"{"metadata":{"n":1.0},"x":1}"#,
            r#"{"id":"t","metadata":{"n":1.0}}"#,
            r#"{"id":"t","metadata":{"n":1.0}}"#,
        ),
        (
            SubscribeToTask,
            "tasks/t:subscribe/",
            None,
            "",
            r#"{"id":"t"}"#,
            r#"{"id":"t"}"#,
        ),
        (GetExtendedCard, "extendedAgentCard", None, "", "{}", "{}"),
    ] {
        for (agent, expected) in [(V0, v0), (V1, v1)] {
            let bridge = bridge(V1_REST, agent);
            let (name, params) = as_call(&bridge, method, rest(tail, query, body));
            assert_eq!(Some(&*name), method.name_in(agent.generation));
            assert_eq!(params, expected, "{tail}");
        }
    }
    let up = bridge(V1_REST, V1);
    let (name, params) = as_call(
        &up,
        ListTasks,
        rest(
            "tasks",
            Some("contextId=7&pageSize=5&status=TASK_STATE_WORKING&includeArtifacts=true"),
            "",
        ),
    );
    assert_eq!(name, "ListTasks");
    let expected =
        r#"{"contextId":"7","pageSize":5,"status":"TASK_STATE_WORKING","includeArtifacts":true}"#;
    assert_eq!(params, expected);
    assert_eq!(
        bridge(V1_REST, V0)
            .translate_request(ListTasks, rest("tasks", None, ""))
            .unwrap_err(),
        Failure::List
    );
    for (method, tail, expected) in [
        (
            GetPushConfig,
            "tasks/t/pushNotificationConfigs/c",
            r#"{"taskId":"t","id":"c"}"#,
        ),
        (
            DeletePushConfig,
            "tasks/t/pushNotificationConfigs/c",
            r#"{"taskId":"t","id":"c"}"#,
        ),
        (
            ListPushConfigs,
            "tasks/t/pushNotificationConfigs",
            r#"{"taskId":"t"}"#,
        ),
    ] {
        assert_eq!(as_call(&up, method, rest(tail, None, "")).1, expected);
    }
    let body = r#"{"url":"http://a","taskId":"other"}"#;
    let create = rest("tasks/t/pushNotificationConfigs", None, body);
    assert_eq!(
        as_call(&up, CreatePushConfig, create).1,
        r#"{"taskId":"t","url":"http://a"}"#
    );
    let (get, _) = (
        bridge(V1_REST, V0)
            .snapshot_request(rest("tasks/t:subscribe", None, ""))
            .unwrap(),
        (),
    );
    assert!(
        String::from_utf8(get.body)
            .unwrap()
            .ends_with(r#""method":"tasks/get","params":{"id":"t"}}"#)
    );
}

#[test]
fn routes_of_0_3_become_calls() {
    let body = r#"{"request":{"messageId":"m","role":"ROLE_USER","content":[{"text":"hi"},{"file":{"fileWithUri":"u","mimeType":"a/b"}},{"data":{"data":{"n":1.0}},"metadata":{"k":1}}]},"configuration":{"blocking":true,"historyLength":0}}"#;
    let v1 = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"},{"url":"u","mediaType":"a/b"},{"data":{"n":1.0},"metadata":{"k":1}}]},"configuration":{}}"#;
    let v0 = r#"{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"},{"kind":"file","file":{"uri":"u","mimeType":"a/b"}},{"kind":"data","data":{"n":1.0},"metadata":{"k":1}}]},"configuration":{"historyLength":0}}"#;
    for (agent, expected) in [(V0, v0), (V1, v1)] {
        let bridge = bridge(V0_REST, agent);
        // Clients that do not come from the proto write the message of JSON-RPC.
        let kinds = r#"{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"},{"kind":"file","file":{"uri":"u","mimeType":"a/b"}},{"kind":"data","data":{"n":1.0},"metadata":{"k":1}}]},"configuration":{"blocking":true,"historyLength":0}}"#;
        for body in [
            body.to_owned(),
            body.replace("request", "message"),
            kinds.to_owned(),
        ] {
            assert_eq!(
                as_call(&bridge, SendMessage, rest("v1/message:send", None, &body)).1,
                expected
            );
        }
        let (_, params) = as_call(
            &bridge,
            GetTask,
            rest("v1/tasks/t", Some("historyLength=0"), ""),
        );
        assert_eq!(params, r#"{"id":"t"}"#);
    }
    let own = bridge(V0_REST, V0);
    let config = r#"{"kept":1,"url":"http://a","id":"c"}"#.replace(r#""kept":1,"#, "");
    for body in [
        config.clone(),
        format!(
            r#"{{"parent":"tasks/t","configId":"c","config":{{"name":"tasks/x/pushNotificationConfigs/c","pushNotificationConfig":{config}}}}}"#
        ),
    ] {
        let create = rest("v1/tasks/t/pushNotificationConfigs", None, &body);
        let expected = r#"{"taskId":"t","pushNotificationConfig":{"id":"c","url":"http://a"}}"#;
        assert_eq!(as_call(&own, CreatePushConfig, create).1, expected);
    }
    let (_, params) = as_call(
        &own,
        GetPushConfig,
        rest("v1/tasks/t/pushNotificationConfigs/c", None, ""),
    );
    assert_eq!(params, r#"{"id":"t","pushNotificationConfigId":"c"}"#);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn calls_become_routes_of_either_generation() {
    let up = bridge(V0, V1_REST);
    let own = bridge(V1, V1_REST);
    let down = bridge(V1, V0_REST);
    let old = bridge(V0, V0_REST);
    for (bridge, method, params, expected) in [
        (
            &up,
            SendMessage,
            r#"{"message":{"role":"user"}}"#,
            r#"POST message:send {"message":{"role":"ROLE_USER"}}"#,
        ),
        (
            &own,
            SendStreamingMessage,
            r#"{"x": 1}"#,
            r#"POST message:stream {"x": 1}"#,
        ),
        (
            &down,
            SendMessage,
            r#"{"message":{"messageId":"m","role":"ROLE_USER","referenceTaskIds":["r"],"parts":[{"raw":"AA==","filename":"n"},{"data":1}]}}"#,
            r#"POST v1/message:send {"message":{"messageId":"m","role":"ROLE_USER","content":[{"file":{"fileWithBytes":"AA==","name":"n"}},{"data":{"data":{"value":1}},"metadata":{"data_part_compat":true}}]},"configuration":{"blocking":true}}"#,
        ),
        (
            &down,
            SendMessage,
            r#"{"message":{},"configuration":{"returnImmediately":true}}"#,
            r#"POST v1/message:send {"message":{},"configuration":{"blocking":false}}"#,
        ),
        (
            &up,
            GetTask,
            r#"{"id":"a:b","historyLength":3}"#,
            "GET tasks/a%3Ab?historyLength=3 ",
        ),
        (
            &up,
            GetTask,
            r#"{"id":"t","historyLength":0}"#,
            "GET tasks/t ",
        ),
        (
            &own,
            GetTask,
            r#"{"id":"t","historyLength":0}"#,
            "GET tasks/t?historyLength=0 ",
        ),
        (
            &down,
            GetTask,
            r#"{"id":"t","historyLength":0}"#,
            "GET v1/tasks/t ",
        ),
        (
            &down,
            CancelTask,
            r#"{"id":"t","metadata":{"a":1}}"#,
            "POST v1/tasks/t:cancel {}",
        ),
        (
            &up,
            CancelTask,
            r#"{"id":"t","metadata":{"a":1}}"#,
            r#"POST tasks/t:cancel {"metadata":{"a":1}}"#,
        ),
        (
            &up,
            SubscribeToTask,
            r#"{"id":"t:1","metadata":{}}"#,
            "GET tasks/t%3A1:subscribe ",
        ),
        (&up, GetExtendedCard, "{}", "GET extendedAgentCard "),
        (&down, GetExtendedCard, "{}", "GET v1/card "),
        (
            &own,
            ListTasks,
            r#"{"pageSize":5,"contextId":"a.b","pageToken":"a&b","status":null,"x":1}"#,
            "GET tasks?contextId=a.b&pageSize=5&pageToken=a%26b ",
        ),
        (
            &own,
            CreatePushConfig,
            r#"{"taskId":"t","url":"http://a"}"#,
            r#"POST tasks/t/pushNotificationConfigs {"taskId":"t","url":"http://a"}"#,
        ),
        (
            &own,
            GetPushConfig,
            r#"{"taskId":"t","id":"c"}"#,
            "GET tasks/t/pushNotificationConfigs/c ",
        ),
        (
            &own,
            ListPushConfigs,
            r#"{"taskId":"t","pageToken":"p"}"#,
            "GET tasks/t/pushNotificationConfigs?pageToken=p ",
        ),
        (
            &old,
            CreatePushConfig,
            r#"{"taskId":"t","pushNotificationConfig":{"id":"c","url":"http://a","authentication":{"schemes":["Bearer","Basic"]}}}"#,
            r#"POST v1/tasks/t/pushNotificationConfigs {"parent":"tasks/t","configId":"c","config":{"name":"tasks/t/pushNotificationConfigs/c","pushNotificationConfig":{"id":"c","url":"http://a","authentication":{"schemes":["Bearer","Basic"]}}}}"#,
        ),
        (
            &old,
            GetPushConfig,
            r#"{"id":"t"}"#,
            "GET v1/tasks/t/pushNotificationConfigs/t ",
        ),
        (
            &old,
            DeletePushConfig,
            r#"{"id":"t","pushNotificationConfigId":"c"}"#,
            "DELETE v1/tasks/t/pushNotificationConfigs/c ",
        ),
    ] {
        assert_eq!(as_route(bridge, method, params), expected);
    }
    let (sent, _) = request(&up, GetTask, r#"{"id":"t"}"#).unwrap();
    assert_eq!(
        (sent.content_type, sent.method),
        ("application/a2a+json", None)
    );
    let tenant = Bridge {
        tenant: Some("acme"),
        ..up
    };
    assert_eq!(
        as_route(&tenant, GetTask, r#"{"id":"t:1"}"#),
        "GET acme/tasks/t%3A1 "
    );
}

#[test]
fn an_id_that_is_another_route_is_refused() {
    let bad = "|.|..|tasks/T|T/pushNotificationConfigs|a b|T?x|t:cancel|t:subscribe|Tasks|v1|message:send";
    for id in bad.split('|') {
        for agent in [V0_REST, V1_REST] {
            for caller in [V0, V1] {
                for method in [GetTask, CancelTask, SubscribeToTask] {
                    let params = format!(r#"{{"id":"{id}"}}"#);
                    let failure = request(&bridge(caller, agent), method, &params).unwrap_err();
                    assert_eq!(failure, Failure::Params("id"), "{method:?} {id}");
                }
            }
        }
    }
    for (task, id, member) in [
        ("a/b", "c", "taskId"),
        ("t", "x/y", "id"),
        ("..", "c", "taskId"),
    ] {
        let params =
            format!(r#"{{"taskId":"{task}","pushNotificationConfig":{{"id":"{id}","url":"u"}}}}"#);
        let failure = request(&bridge(V0, V0_REST), CreatePushConfig, &params).unwrap_err();
        assert_eq!(failure, Failure::Params(member), "{params}");
    }
    for context in [r#""a&pageSize=1""#, r#""tasks/T""#, "{}"] {
        let params = format!(r#"{{"contextId":{context}}}"#);
        let failure = request(&bridge(V1, V1_REST), ListTasks, &params).unwrap_err();
        assert_eq!(failure, Failure::Params("contextId"), "{context}");
    }
    let params = r#"{"id":"t","pushNotificationConfigId":"../x:cancel"}"#;
    let failure = request(&bridge(V0, V0_REST), DeletePushConfig, params).unwrap_err();
    assert_eq!(failure, Failure::Params("id"));
    for params in ["{}", r#"{"id":7}"#, r#"{"id":null}"#] {
        let failure = request(&bridge(V0, V1_REST), GetTask, params).unwrap_err();
        assert_eq!(failure.code(), -32_602, "{params}");
    }
}

#[test]
fn the_bytes_of_files_arrive_or_are_refused() {
    use FileBytes::{Once, Twice, Unknown};
    let message = |part: &str| {
        format!(r#"{{"message":{{"messageId":"m","role":"ROLE_USER","content":[{part}]}}}}"#)
    };
    // "hello"; the bytes 00 ff; "test", which may be base64 itself.
    let (hello, binary, test) = ("aGVsbG8=", "AP8=", "dGVzdA==");
    let (hello_twice, binary_twice) = ("YUdWc2JHOD0=", "QVA4PQ==");
    // Read from a client over HTTP+JSON of 0.3, for an agent of each generation.
    for (files, media_type, sent, expected) in [
        (Twice, "text/plain", hello_twice, Some(hello)),
        (Twice, "image/png", binary_twice, Some(binary)),
        (Twice, "text/plain", hello, Some(hello)),
        (Once, "text/plain", hello, Some(hello)),
        (Once, "text/plain", hello_twice, Some(hello_twice)),
        (Unknown, "image/png", binary_twice, Some(binary)),
        (Unknown, "image/png", binary, Some(binary)),
        (Unknown, "text/plain", hello, Some(hello)),
        (Unknown, "text/plain", hello_twice, None),
        (Unknown, "text/plain", test, None),
        (Unknown, "text/plain", "", Some("")),
        (Twice, "text/plain", "no base64", Some("no base64")),
    ] {
        let file = format!(r#""fileWithBytes":"{sent}","mimeType":"{media_type}""#);
        let body = message(&format!(r#"{{"file":{{{file}}}}}"#));
        for agent in [V0, V1] {
            let asked = Bridge {
                files,
                ..bridge(V0_REST, agent)
            };
            let call = rest("v1/message:send", None, &body);
            let read = asked.translate_request(SendMessage, call);
            let said = format!("{files:?} {media_type} {sent}");
            let Some(expected) = expected else {
                let failure = read.unwrap_err();
                assert_eq!((failure, failure.code()), (Failure::FileBytes, -32_005));
                continue;
            };
            let sent = json(read.unwrap().0.body);
            let part = &sent["params"]["message"]["parts"][0];
            let bytes = part.get("raw").unwrap_or(&part["file"]["bytes"]);
            assert_eq!(bytes, expected, "{said}");
        }
    }
    // The form of JSON-RPC has them once, also there.
    let kinds = r#"{"kind":"file","file":{"bytes":"YUdWc2JHOD0="}}"#;
    let asked = bridge(V0_REST, V1);
    let (_, params) = as_call(
        &asked,
        SendMessage,
        rest("v1/message:send", None, &message(kinds)),
    );
    assert!(params.contains(r#"{"raw":"YUdWc2JHOD0="}"#), "{params}");
    // Written to an agent, and to a client.
    let file_v1 = r#"{"messageId":"m","role":"ROLE_USER","parts":[{"raw":"aGVsbG8"}]}"#;
    for (files, expected) in [
        (Once, Some(hello)),
        (Twice, Some(hello_twice)),
        (Unknown, None),
    ] {
        let down = Bridge {
            files,
            ..bridge(V1, V0_REST)
        };
        let sent = request(&down, SendMessage, &format!(r#"{{"message":{file_v1}}}"#));
        let sent = sent.map(|(sent, _)| json(sent.body)["message"].clone());
        let mut told = Exchange::new(V0_REST, V1, SendMessage, None);
        told.files = files;
        let body = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"message":{file_v1}}}}}"#);
        let told = told.translate_answer(200, body.as_bytes());
        let told = told.map(|answer| json(answer.body)["message"].clone());
        for written in [sent, told] {
            let bytes = written
                .map(|message| message["content"][0]["file"]["fileWithBytes"].clone())
                .map_err(|failure| assert_eq!(failure, Failure::FileBytes));
            assert_eq!(bytes.ok(), expected.map(Value::from), "{files:?}");
        }
    }
    for (client, files) in [
        ("python-httpx/0.28.1", Twice),
        ("node", Once),
        ("Mozilla/5.0 (X11)", Once),
        ("", Unknown),
        ("my-agent/1", Unknown),
    ] {
        assert_eq!(FileBytes::of_client(client), files, "{client}");
    }
}
