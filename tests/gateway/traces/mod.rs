//! Traces as a collector and the agents see them: both protocols, every way that an exchange can end, the caller's
//! context, and a collector that is away.

mod context;
mod loss;
mod spans;

use crate::harness::collector::{Collector, Span};
use crate::harness::{
    Agent, Answer, Builder, CALL, Gateway, Pair, Recorded, Request, Seat, Step, answering,
};

/// A trace of a caller.
pub(crate) const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Its span.
pub(crate) const SPAN: &str = "00f067aa0ba902b7";

pub(crate) struct Case {
    pub(crate) collector: Collector,
    pub(crate) gateway: Gateway,
    caller: Seat,
    target: Seat,
}

/// A gateway that traces.
pub(crate) fn traced(pair: Pair, collector: &Collector) -> Builder {
    Builder::new(pair).set("telemetry.otlp_endpoint", &collector.http())
}

impl Case {
    /// With an agent that answers every call alike.
    pub(crate) async fn new() -> Self {
        Self::built(|builder, _| builder).await
    }

    async fn with(behaviour: impl Fn(&Recorded) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let collector = Collector::start().await;
        let builder = traced(Pair::Embedded, &collector);
        Self::on(collector, builder, Agent::scripted(behaviour).await).await
    }

    /// As [`Case::new`], with a gateway that is set up otherwise.
    async fn built(build: impl FnOnce(Builder, &Collector) -> Builder) -> Self {
        let collector = Collector::start().await;
        let builder = build(traced(Pair::Embedded, &collector), &collector);
        Self::on(collector, builder, answering().await).await
    }

    pub(crate) async fn on(collector: Collector, builder: Builder, agent: Agent) -> Self {
        let gateway = builder.start().await;
        let (caller, target) = gateway.pair(agent).await;
        Self {
            collector,
            gateway,
            caller,
            target,
        }
    }

    fn request(&self, id: &str, body: &str) -> Request {
        let request = self.caller.sends(&self.target, body);
        request.field("X-Request-Id", id)
    }

    /// A good call, with these fields besides.
    pub(crate) async fn call(&self, id: &str, fields: &[(&str, &str)]) -> Answer {
        let mut request = self.request(id, CALL);
        for (name, value) in fields {
            request = request.field(name, *value);
        }
        self.gateway.call(&request).await
    }

    /// What the agent got of the last call, as trace, parent and flags.
    fn arrived(&self) -> [String; 3] {
        context_of(&self.target.agent.take())
    }
}

/// The one `traceparent` of a request, which must be right.
fn context_of(request: &Recorded) -> [String; 3] {
    let fields = request.fields("traceparent");
    let [field] = fields.as_slice() else {
        panic!("not one traceparent: {fields:?}");
    };
    let parts: Vec<&str> = field.split('-').collect();
    let [version, trace, parent, flags] = parts.as_slice() else {
        panic!("{field}");
    };
    let lengths = (*version, trace.len(), parent.len(), flags.len());
    assert_eq!(lengths, ("00", 32, 16, 2), "{field}");
    [trace, parent, flags].map(|part| (*part).to_owned())
}

/// The server's span and the call below it, which hang together.
fn two(spans: &[Span]) -> (&Span, &Span) {
    let [server, client] = spans else {
        panic!("not two: {spans:#?}");
    };
    assert!(server.is_server() && client.is_client(), "{spans:#?}");
    assert_eq!(client.parent, server.id);
    assert_eq!(client.trace, server.trace);
    let is_within = server.nanos.0 <= client.nanos.0 && client.nanos.1 <= server.nanos.1;
    assert!(is_within, "{spans:#?}");
    (server, client)
}

/// Waits until a counter says at least so much.
async fn counted(case: &Case, outcome: &str, least: f64) -> f64 {
    let spans = "a2a_gateway_spans_total";
    case.gateway.until_counted(spans, &[outcome], least).await;
    case.gateway.metric(spans, &[outcome]).await
}
