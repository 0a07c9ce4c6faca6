//! W3C Trace Context, in and out.

use serde_json::json;

use super::{Case, SPAN, TRACE, context_of, counted, two};
use crate::harness::{Gateway, Pair, answering};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agents_parent_is_the_gateways_call_and_the_gateways_is_the_callers() {
    let case = Case::new().await;
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let fields = [
        ("traceparent", parent.as_str()),
        ("tracestate", "a=1"),
        ("tracestate", "b=2"),
        ("baggage", "k=v"),
    ];
    case.call("r-1", &fields).await.has(200);
    let spans = case.collector.of_request("r-1", 2).await;
    let (server, client) = two(&spans);
    assert_eq!((&*server.trace, &*server.parent), (TRACE, SPAN));
    assert_eq!(server.state, "a=1,b=2");
    let asked = case.target.agent.take();
    assert_eq!(context_of(&asked), [TRACE, &client.id, "01"]);
    assert_eq!(asked.fields("tracestate"), ["a=1,b=2"]);
    assert_eq!(asked.fields("baggage"), ["k=v"]);
    // The log knows the trace, too.
    let lines = case.gateway.access_lines("r-1").await;
    assert_eq!(lines[0]["trace_id"], TRACE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_context_that_can_be_read_a_trace_begins_at_the_gateway() {
    let case = Case::new().await;
    let good = format!("00-{TRACE}-{SPAN}-01");
    let zero = format!("00-{}-{SPAN}-01", "0".repeat(32));
    let upper = format!("00-{}-{SPAN}-01", TRACE.to_uppercase());
    let (good, state) = (("traceparent", &*good), ("tracestate", "a=1"));
    let cases: [(&str, &[(&str, &str)]); 7] = [
        ("absent", &[state]),
        ("odd", &[("traceparent", "t-1"), state]),
        ("zero", &[("traceparent", &zero), state]),
        ("upper", &[("traceparent", &upper)]),
        ("empty", &[("traceparent", "")]),
        ("two", &[good, good]),
        ("ends-here", &[good, ("Connection", "traceparent")]),
    ];
    for (id, fields) in cases {
        let answer = case.call(id, fields).await;
        assert_eq!(answer.status, 200, "{id}: {}", answer.text());
        let asked = case.target.agent.take();
        let [trace, parent, flags] = context_of(&asked);
        let spans = case.collector.of_request(id, 2).await;
        let (server, client) = two(&spans);
        assert_ne!(trace, TRACE, "{id}");
        assert_eq!((&*server.parent, &server.trace), ("", &trace), "{id}");
        assert_eq!((&client.id, flags.as_str()), (&parent, "01"), "{id}");
        assert_eq!(asked.fields("tracestate"), [""; 0], "{id}");
        assert_eq!(server.state, "", "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_does_not_record_is_followed_and_still_sends_a_valid_context() {
    let case = Case::new().await;
    let parent = format!("00-{TRACE}-{SPAN}-00");
    let fields = [("traceparent", parent.as_str()), ("tracestate", "a=1")];
    case.call("silent", &fields).await.has(200);
    let asked = case.target.agent.take();
    let [trace, parent, flags] = context_of(&asked);
    assert_eq!((trace.as_str(), flags.as_str()), (TRACE, "00"));
    assert_ne!(parent, SPAN, "the gateway's own");
    assert_eq!(asked.fields("tracestate"), ["a=1"]);
    let line = &case.gateway.access_lines("silent").await[0];
    assert_eq!(line["trace_id"], TRACE);
    // What comes after it arrives, and it does not.
    case.call("loud", &[]).await;
    case.collector.of_request("loud", 2).await;
    let mut spans = case.collector.spans().into_iter();
    assert!(spans.all(|span| span.trace != TRACE));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_share_of_nothing_only_who_is_trusted_is_recorded() {
    let recorded = format!("00-{TRACE}-{SPAN}-01");
    for (follow, flags) in [("false", "00"), ("true", "01")] {
        let settings = format!("telemetry.sampling=0 telemetry.follow_callers={follow}");
        let case = Case::built(|builder, _| builder.sets(&settings)).await;
        case.call("own", &[]).await.has(200);
        assert_eq!(case.arrived()[2], "00");
        let theirs = [("traceparent", &*recorded)];
        case.call("theirs", &theirs).await.has(200);
        let [trace, parent, found] = case.arrived();
        assert_eq!((trace.as_str(), found.as_str()), (TRACE, flags), "{follow}");
        if follow == "true" {
            let spans = case.collector.of_request("theirs", 2).await;
            assert_eq!(two(&spans).1.id, parent);
        }
        let expected = if follow == "true" { 2.0 } else { 0.0 };
        let exported = counted(&case, "exported", expected).await;
        assert_eq!(exported, expected, "{follow}");
        let waiting = case.gateway.metric("a2a_gateway_spans_waiting", &[]);
        assert_eq!(waiting.await, 0.0, "{follow}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_share_of_half_about_half_is_recorded_whatever_ids_callers_write() {
    let case = Case::built(|builder, _| builder.set("telemetry.sampling", "0.5")).await;
    let mut recorded = 0;
    for _ in 0..100 {
        // An id that samplers by the trace's id always record.
        let parent = format!("00-{:032x}-{SPAN}-01", 1);
        let answer = case.call("r", &[("traceparent", &parent)]).await;
        assert_eq!(answer.status, 200);
        recorded += u32::from(case.arrived()[2] == "01");
    }
    // Outside of this once in ten million.
    assert!((24..=76).contains(&recorded), "{recorded}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_nothing_is_traced_the_callers_fields_pass_as_they_came() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let (caller, target) = gateway.pair(answering().await).await;
    let request = caller
        .calls(&target)
        .field("X-Request-Id", "r-off")
        .field("traceparent", "t-1")
        .field("tracestate", "whatever");
    assert_eq!(gateway.call(&request).await.status, 200);
    let asked = target.agent.take();
    assert_eq!(asked.fields("traceparent"), ["t-1"]);
    assert_eq!(asked.fields("tracestate"), ["whatever"]);
    let bare = request.without("traceparent").without("tracestate");
    assert_eq!(gateway.call(&bare).await.status, 200);
    assert_eq!(target.agent.take().fields("traceparent"), [""; 0]);
    let line = &gateway.access_lines("r-off").await[0];
    assert_eq!(line.get("trace_id"), None, "{line}");
    assert_eq!(line["callee"], json!("target"));
}
