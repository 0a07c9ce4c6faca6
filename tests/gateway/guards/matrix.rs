//! Each behaviour of a guard, in each phase, for callers and agents of either generation and binding: unary and
//! streamed.

use super::*;

/// A gateway with a workspace for each phase and behaviour, whose one guard behaves so in that phase.
struct Rows {
    gateway: Gateway,
    caller: Seat,
    seats: Vec<(&'static str, &'static str, Seat)>,
    _guard: Agent,
}

const PHASES: [&str; 3] = ["request", "response", "event"];

impl Rows {
    async fn new(card_of: fn(&str) -> Value) -> Self {
        let guard = guard().await;
        let rows = PHASES.map(|phase| BEHAVIOURS.map(|behaviour| (phase, behaviour)));
        let tables = rows.as_flattened().iter().map(|(phase, behaviour)| {
            let name = format!("{phase}-{behaviour}");
            let mut more = json!({"phases": [phase], "targets": [&name]});
            if *phase == "event" && *behaviour == "hang" {
                // The event before the one with the secret is judged in time.
                more["timeout"] = "10s".into();
            }
            table(&name, &guard, behaviour, more)
        });
        let tables = json!(tables.collect::<Vec<_>>());
        let gateway = builder(Pair::Embedded, &tables).start().await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let mut seats = Vec::new();
        for &(phase, behaviour) in rows.as_flattened() {
            let said = if phase == "request" { "hello" } else { SECRET };
            let card = card_of(&format!("{phase}-{behaviour}"));
            let seat = gateway.seat_of(card, "", agent(said).await).await;
            seats.push((phase, behaviour, seat));
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
            let before = seat.agent.calls();
            let request = form.request(seat, &self.caller, streams, says);
            let answer = self.gateway.call(&request).await;
            let place = format!("{form:?} {streams} {phase} {behaviour}: {}", answer.text());
            let other_side = match *phase {
                "request" => wire(&seat.agent),
                _ => answer.text(),
            };
            let (has_secret, has_mask) = (other_side.contains(SECRET), other_side.contains(MASK));
            assert_eq!(has_secret, *behaviour == "pass", "{place}");
            assert_eq!(has_mask, *behaviour == "replace", "{place}");
            let (reason, status) = match *behaviour {
                "pass" | "replace" => {
                    assert_eq!(answer.status, 200, "{place}");
                    continue;
                }
                "reject" => ("guard_rejected", 403),
                _ => ("guard_unavailable", 503),
            };
            if *phase == "event" {
                assert_eq!(answer.status, 200, "{place}");
                let events = answer.events();
                // The event before passes.
                assert!(events[0].contains("t-1"), "{place}");
                let last = events.last().unwrap().to_lowercase();
                assert!(last.contains(reason) && last.contains("event-"), "{place}");
                assert!(last.contains("\"delivered\":\"true\""), "{place}");
                assert!(!answer.text().contains("ompleted"), "{place}");
                continue;
            }
            assert_eq!(answer.reason(), reason, "{place}");
            assert_eq!(answer.status, status, "{place}");
            let name = format!("{phase}-{behaviour}");
            assert_eq!(answer.fact("guard"), Some(name), "{place}");
            let delivered = if *phase == "request" { "false" } else { "true" };
            answer.tells_for(&place, "delivered", delivered);
            if *behaviour == "reject" {
                answer.tells_for(&place, "why", "not this");
            }
            let sent = seat.agent.calls() - before;
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
        assert!(!log.contains(SECRET), "content in the log");
        assert!(!log.contains("not this"), "content in the log");
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
