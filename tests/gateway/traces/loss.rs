//! A collector that is away, slow, or refuses; how spans get to it; and the end of the process.

use std::time::Duration;

use super::{Case, counted, two};
use crate::harness::collector::Mood;
use crate::harness::ports::free_address;
use crate::harness::{Builder, Connection};

/// Makes calls over one connection.
async fn calls(case: &Case, count: usize) {
    let mut connection = Connection::open(case.gateway.public).await;
    let request = case.request("many", crate::harness::CALL);
    for _ in 0..count {
        connection.call(&request).await.has(200);
    }
}

/// A case that exports by a protocol, from a process: the exporter logs on a thread of its own.
async fn by(protocol: &str, build: impl FnOnce(Builder) -> Builder) -> Case {
    Case::built(|builder, collector| {
        let builder = build(builder.process());
        if protocol == "grpc" {
            let builder = builder.set("telemetry.otlp_endpoint", &collector.grpc());
            return builder.set("telemetry.otlp_protocol", "grpc");
        }
        builder
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_protocols_carry_the_same_spans_and_the_fields_for_the_collector() {
    for protocol in ["http/protobuf", "grpc"] {
        let secret = "planted-otlp-credential";
        crate::harness::planted::plant(secret);
        let fields = format!("authorization=Bearer%20{secret},x-tenant=acme");
        let case = by(protocol, |builder| {
            let builder = builder.set("telemetry.otlp_headers", &fields);
            let builder = builder.set("telemetry.service_name", "edge");
            let attributes = "deployment.environment.name=test";
            builder.env("OTEL_RESOURCE_ATTRIBUTES", attributes)
        })
        .await;
        case.call("r-1", &[]).await.has(200);
        let spans = case.collector.of_request("r-1", 2).await;
        let (server, _) = two(&spans);
        assert_eq!(server.service(), "edge");
        assert_eq!(server.resource["deployment.environment.name"], "test");
        let fields = case.collector.fields().remove(0);
        assert!(fields.contains(&format!("Bearer {secret}")), "{fields}");
        assert!(fields.contains("acme"), "{fields}");
        // What the admin listener shows is searched for the secret when the gateway is dropped.
        let config = case.gateway.admin_get("/config").await.unwrap();
        config.says("telemetry.otlp_headers");
        config.says("***");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_is_counted_told_of_once_and_harms_nobody() {
    for protocol in ["http/protobuf", "grpc"] {
        let nobody = format!("http://{}", free_address("127.0.0.1"));
        let case = Case::built(|builder, _| {
            let builder = builder.process().set("telemetry.otlp_endpoint", &nobody);
            let builder = builder.set("telemetry.otlp_protocol", protocol);
            builder.set("telemetry.otlp_timeout", "1s")
        })
        .await;
        calls(&case, 50).await;
        counted(&case, "failed", 50.0).await;
        calls(&case, 1).await;
        counted(&case, "failed", 102.0).await;
        case.gateway.until_told("Spans are lost", 1).await;
        let told = case.gateway.log().matches("Spans are lost").count();
        assert_eq!(told, 1, "{protocol}: {}", case.gateway.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_refuses_or_never_answers_is_counted_and_taken_up_again() {
    for protocol in ["http/protobuf", "grpc"] {
        let hurried = |builder: Builder| builder.set("telemetry.otlp_timeout", "10s");
        let case = by(protocol, hurried).await;
        for (round, mood) in [(1.0, Mood::Refuses), (2.0, Mood::Sleeps)] {
            case.collector.set(mood);
            calls(&case, 5).await;
            counted(&case, "failed", round * 10.0).await;
            case.collector.set(Mood::Takes);
            let id = format!("again-{round}");
            case.call(&id, &[]).await.has(200);
            case.collector.of_request(&id, 2).await;
            counted(&case, "exported", round * 2.0).await;
            case.gateway.until_told("Spans are lost", 1).await;
            case.gateway.until_told("takes spans again", 1).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_never_answers_costs_spans_and_no_memory_or_time() {
    // So that nothing leaves the queue while this lasts.
    let case = Case::built(|builder, collector| {
        collector.set(Mood::Sleeps);
        builder.set("telemetry.otlp_timeout", "1h")
    })
    .await;
    calls(&case, 2_100).await;
    let dropped = counted(&case, "dropped", 100.0).await;
    let waiting = case.gateway.metric("a2a_gateway_spans_waiting", &[]).await;
    assert!((4_096.0..=4_100.0).contains(&waiting), "{waiting}");
    assert!(dropped < 200.0, "{dropped}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_sent_before_the_process_ends_but_nobody_waits_for_long() {
    for mood in [Mood::Takes, Mood::Sleeps] {
        let mut case = Case::built(|builder, collector| {
            collector.set(mood);
            builder.process().set("telemetry.otlp_timeout", "10min")
        })
        .await;
        case.call("last", &[]).await.has(200);
        case.gateway.terminate();
        let status = case.gateway.wait(Duration::from_secs(60));
        assert!(status.success(), "{status:?}");
        let log = case.gateway.log();
        if mood == Mood::Takes {
            let spans = case.collector.spans();
            let mut ids = spans.iter().map(|span| span.get("a2a.request_id"));
            assert!(ids.any(|id| id == "last"), "{spans:#?}");
            assert!(!log.contains("last spans were not sent"), "{log}");
        } else {
            assert!(log.contains("last spans were not sent"), "{log}");
        }
    }
}
