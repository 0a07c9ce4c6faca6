//! Each behaviour of a guard, in each phase, for callers and agents of either generation and binding: unary and streamed.

use super::*;

/// A gateway with a workspace for each phase and behaviour, whose one guard behaves so in that phase.
struct Rows {
    gateway: Gateway,
    caller: Seat,
    seats: Vec<(&'static str, &'static str, Seat)>,
    _guard: Agent,
}

/// The calls at an agent: its card may be read, too.
fn calls(agent: &Agent) -> usize {
    let requests = agent.requests();
    let calls = requests.iter().filter(|one| one.head.starts_with("POST "));
    calls.count()
}

const PHASES: [&str; 3] = ["request", "response", "event"];

impl Rows {
    async fn new(card_of: fn(&str) -> Value) -> Self {
        let guard = guard().await;
        let mut tables = Vec::new();
        for phase in PHASES {
            for behaviour in BEHAVIOURS {
                let name = format!("{phase}-{behaviour}");
                let more = json!({"phases": [phase], "targets": [&name]});
                tables.push(table(&name, &guard, behaviour, more));
            }
        }
        let gateway = builder(Pair::Embedded, &json!(tables)).start().await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let mut seats = Vec::new();
        for phase in PHASES {
            for behaviour in BEHAVIOURS {
                let name = format!("{phase}-{behaviour}");
                let said = if phase == "request" { "hello" } else { SECRET };
                let seat = gateway.seat_of(card_of(&name), "", agent(said).await).await;
                seats.push((phase, behaviour, seat));
            }
        }
        Self {
            gateway,
            caller,
            seats,
            _guard: guard,
        }
    }

    async fn run(&self, form: Form, streams: bool) {
        for (phase, behaviour, seat) in &self.seats {
            if *phase == if streams { "response" } else { "event" } {
                continue;
            }
            let says = if *phase == "request" { SECRET } else { "hello" };
            let before = calls(&seat.agent);
            let answer = self
                .gateway
                .call(&form.request(seat, &self.caller, streams, says))
                .await;
            let place = format!("{form:?} {streams} {phase} {behaviour}: {}", answer.text());
            let at_agent = wire(&seat.agent);
            let other_side = if *phase == "request" {
                &at_agent
            } else {
                &answer.text()
            };
            assert_eq!(other_side.contains(SECRET), *behaviour == "pass", "{place}");
            assert_eq!(
                other_side.contains(MASK),
                *behaviour == "replace",
                "{place}"
            );
            let reason = match *behaviour {
                "pass" | "replace" => None,
                "reject" => Some(("guard_rejected", 403)),
                _ => Some(("guard_unavailable", 503)),
            };
            let Some((reason, status)) = reason else {
                assert_eq!(answer.status, 200, "{place}");
                continue;
            };
            if *phase == "event" {
                assert_eq!(answer.status, 200, "{place}");
                let events = answer.events();
                assert!(
                    events[0].contains("t-1"),
                    "the event before passes: {place}"
                );
                let last = events.last().unwrap().to_lowercase();
                assert!(last.contains(reason) && last.contains("event-"), "{place}");
                assert!(last.contains("\"delivered\":\"true\""), "{place}");
                assert!(!answer.text().contains("ompleted"), "{place}");
                continue;
            }
            assert_eq!(
                (answer.reason(), answer.status),
                (reason.to_owned(), status),
                "{place}"
            );
            let name = format!("{phase}-{behaviour}");
            assert_eq!(answer.fact("guard"), Some(name), "{place}");
            let delivered = if *phase == "request" { "false" } else { "true" };
            assert_eq!(
                answer.fact("delivered").as_deref(),
                Some(delivered),
                "{place}"
            );
            if *behaviour == "reject" {
                assert_eq!(answer.fact("why").as_deref(), Some("not this"), "{place}");
            }
            let sent = calls(&seat.agent) - before;
            assert_eq!(sent, usize::from(*phase != "request"), "{place}");
        }
    }

    /// All forms, and that no record tells of content.
    async fn run_all(&self) {
        for form in Form::ALL {
            for streams in [false, true] {
                self.run(form, streams).await;
            }
        }
        let log = self.gateway.log();
        assert!(
            !log.contains(SECRET) && !log.contains("not this"),
            "content in the log"
        );
        self.gateway.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_unpassed_reaches_an_agent_of_0_3_or_its_caller() {
    Rows::new(card).await.run_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_unpassed_reaches_an_agent_of_1_0_or_its_caller() {
    Rows::new(card_1_0).await.run_all().await;
}
