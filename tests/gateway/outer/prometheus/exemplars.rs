//! From a metric to a trace: what Prometheus keeps of the one leads to the other.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{Case, SPAN, TRACE, traced};
use crate::harness::collector::Collector;
use crate::harness::prometheus::Prometheus;
use crate::harness::{Connection, Pair, Request, answering, until_holds};

/// The traces that Prometheus knows of a family's buckets, each with the shape of its exchange.
async fn exemplars(prometheus: &Prometheus, family: &str) -> Vec<(String, String)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let until = now.as_secs() + 60;
    let path = format!("/api/v1/query_exemplars?query={family}_bucket&start=0&end={until}");
    let answer = prometheus.get(&path).await;
    assert_eq!(answer["status"], "success", "{answer}");
    let mut found = Vec::new();
    for series in answer["data"].as_array().unwrap() {
        let shape = series["seriesLabels"]["shape"].as_str().unwrap();
        for exemplar in series["exemplars"].as_array().into_iter().flatten() {
            let labels = exemplar["labels"].as_object().unwrap();
            assert_eq!(labels.len(), 1, "{exemplar}");
            let trace = labels["trace_id"].as_str().unwrap();
            found.push((shape.to_owned(), trace.to_owned()));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_of_a_histogram_names_a_trace_that_the_collector_has() {
    let case = Case::new().await;
    let prometheus = Prometheus::start(&[case.gateway.admin]).await;
    let parent = format!("00-{TRACE}-{SPAN}-01");
    case.call("traced", &[("traceparent", &parent)])
        .await
        .has(200);
    let (trace, unary) = (TRACE.to_owned(), "unary".to_owned());
    for family in ["a2a_gateway_exchange_seconds", "a2a_gateway_head_seconds"] {
        let is_kept = async || {
            let found = exemplars(&prometheus, family).await;
            found.contains(&(unary.clone(), trace.clone()))
        };
        until_holds(family, is_kept).await;
    }
    let spans = case.collector.of_request("traced", 2).await;
    assert!(spans.iter().all(|span| span.trace == TRACE), "{spans:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_recorded_traces_are_named_and_only_to_who_asks_for_them() {
    let collector = Collector::start().await;
    let builder = traced(Pair::Embedded, &collector);
    let case = Case::on(collector, builder, answering().await).await;
    // Its caller records nothing, so nobody does.
    let parent = format!("00-{TRACE}-{SPAN}-00");
    case.call("unrecorded", &[("traceparent", &parent)])
        .await
        .has(200);
    let ended = "a2a_gateway_exchanges_total";
    case.gateway.until_counted(ended, &["answered"], 1.0).await;
    let asked = |accept: &'static str| {
        let request = Request::get("/metrics").field("Accept", accept);
        let admin = case.gateway.admin;
        async move { Connection::open(admin).await.call(&request).await }
    };
    let open = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    assert!(!asked(open).await.text().contains("trace_id"));
    case.call("recorded", &[]).await.has(200);
    case.gateway.until_counted(ended, &["answered"], 2.0).await;
    let told = asked(open).await;
    assert!(told.text().contains("# {trace_id=\""), "{}", told.text());
    assert!(told.text().ends_with("# EOF\n"));
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(told.field("content-type"), Some(format));
    let rather = "text/plain, application/openmetrics-text;q=0.1";
    for accept in ["text/plain", "*/*", rather] {
        let told = asked(accept).await;
        assert!(!told.text().contains("trace_id"), "{accept}");
        told.has_field("content-type", "text/plain; version=0.0.4; charset=utf-8");
    }
}
