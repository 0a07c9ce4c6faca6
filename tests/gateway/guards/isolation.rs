//! A guard that hangs holds up only the calls that need it; a reload changes guards while calls go on.

use super::*;
use crate::harness::until_holds;
use crate::reload::Written;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_hangs_holds_up_only_the_calls_that_need_it() {
    let guard = guard().await;
    let hangs =
        json!({"targets": ["target"], "phases": ["request"], "timeout": "10s", "concurrency": 16});
    let lives = json!({"targets": ["other"], "phases": ["request"]});
    let (hangs, lives) = (("hangs", "hang", hangs), ("lives", "pass", lives));
    let guards = [hangs, lives].map(|(name, behaviour, more)| table(name, &guard, behaviour, more));
    let guards = json!(guards);
    let case = Case::guarded(&guards, "hello").await;
    let other = case.gateway.seat("other", "", agent("hello").await).await;
    let request = case.request(Form::Rpc03, false, SECRET);
    let calls = (0..20).map(|_| case.gateway.call(&request));
    let mut hung = std::pin::pin!(futures_util::future::join_all(calls));
    let other = Form::Rpc03.request(&other, &case.caller, false, SECRET);
    let mut served = 0;
    let hung = loop {
        tokio::select! {
            hung = &mut hung => break hung,
            answer = case.gateway.call(&other), if served < 20 => {
                assert_eq!(answer.status, 200, "{}", answer.text());
                served += 1;
            }
        }
    };
    assert!(served > 0, "calls that do not need it wait for it");
    let mut failures: Vec<_> = hung
        .iter()
        .map(|answer| {
            answer.refuses(503, "guard_unavailable");
            assert!(answer.field("retry-after").is_some());
            answer.fact("failure").unwrap()
        })
        .collect();
    failures.sort();
    failures.dedup();
    // Those that wait for a place get none in time, or the breaker has opened by then.
    assert!(failures.contains(&"timeout".to_owned()), "{failures:?}");
    assert!(failures.len() > 1, "{failures:?}");
    // Now its breaker is open: no question, no wait.
    let asked = || {
        let requests = guard.requests().into_iter();
        requests.filter(|one| one.head.contains("/hang")).count()
    };
    let before = asked();
    let answer = case.gateway.call(&request).await;
    answer.tells("failure", "open");
    assert_eq!(asked(), before);
    assert_eq!(case.target.agent.count(), 0);
    assert!(case.verdicts("hangs", "open").await >= 1.0);
}

/// A call beyond its share does not pass unjudged, and another caller finds a place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_has_its_share_of_a_guard_is_refused_whatever_on_failure_is() {
    let guard = guard().await;
    let more = json!({"targets": ["target"], "phases": ["request"], "timeout": "20s", "concurrency": 2,
        "on_failure": "allow"});
    let guards = json!([table("hangs", &guard, "hang", more)]);
    let case = Case::guarded(&guards, "hello").await;
    let other = case.gateway.seat("other", "", agent("hello").await).await;
    let request = case.request(Form::Rpc03, false, SECRET);
    let hangs = case.gateway.call(&request);
    let rest = async {
        until_holds("the guard is asked", async || guard.count() == 1).await;
        let beyond = case.gateway.call(&request);
        let others = Form::Rpc03.request(&case.target, &other, false, "plain");
        let others = case.gateway.call(&others);
        let (beyond, others) = tokio::join!(beyond, others);
        assert_eq!(others.status, 200, "{}", others.text());
        assert!(beyond.field("retry-after").is_some());
        beyond.has(503).tells("failure", "busy");
        assert_eq!((guard.count(), case.target.agent.count()), (2, 1));
    };
    let (hung, ()) = tokio::join!(hangs, rest);
    assert_eq!(hung.status, 200, "a guard that fails lets it pass");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_caller_has_a_guard_neither_fail_for_others_nor_pass_what_they_say() {
    const SLOW: &str = "a-text-that-it-cannot-bear";
    planted::plant(SECRET);
    for (on_failure, slow, refused) in [("deny", 503, 503), ("allow", 200, 403)] {
        let guard = Agent::scripted(|question| {
            let text = String::from_utf8_lossy(&question.body).into_owned();
            if text.contains(SLOW) {
                return vec![Step::Reset];
            }
            let is_secret = text.contains(SECRET);
            let action = if is_secret { "reject" } else { "pass" };
            verdict(&json!({"action": action, "reason": "it is secret"}))
        });
        let guard = guard.await;
        let more = json!({"phases": ["request"], "on_failure": on_failure});
        let guards = json!([table("g", &guard, "", more)]);
        let case = Case::guarded(&guards, "hello").await;
        let other = case.gateway.seat("other", "", agent("hello").await).await;
        let third = case.gateway.seat("third", "", agent("hello").await).await;
        let fourth = case.gateway.seat("fourth", "", agent("hello").await).await;
        let says = async |by: &Seat, text: &str| {
            let call = Form::Rpc03.request(&case.target, by, false, text);
            case.gateway.call(&call).await
        };
        assert_eq!(says(&other, "hi").await.status, 200);
        let texts = (0..8).map(|_| says(&case.caller, SLOW));
        for answer in futures_util::future::join_all(texts).await {
            assert_eq!(answer.status, slow, "{on_failure}: {}", answer.text());
        }
        // It is judged where it could choose not to be, and others are.
        let again = says(&case.caller, SECRET).await;
        assert_eq!(again.status, refused, "{on_failure}: {}", again.text());
        assert_eq!(says(&other, "hi").await.status, 200, "{on_failure}");
        let secret = says(&other, SECRET).await.reason();
        assert_eq!(secret, "guard_rejected", "{on_failure}");
        // Failures of two are of the guard.
        for by in [&other, &third, &other, &third, &other] {
            assert_eq!(says(by, SLOW).await.status, slow, "{on_failure}");
        }
        let asked = guard.count();
        let answer = says(&fourth, "hi").await;
        assert_eq!(answer.status, slow, "{on_failure}");
        assert_eq!(guard.count(), asked, "{on_failure}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_changes_guards() {
    const OFF: &str = "[rate]\ncaller_per_second = 0\nfailures_per_second = 0\n";
    let guard = |text: &str| {
        format!(
            "{OFF}[[guard]]\nname = \"own\"\nbuiltin = \"patterns\"\npatterns = [{{name = \"word\", regex = \"{text}\"}}]\n"
        )
    };
    let written = Written::new(OFF);
    let builder = Builder::new(Pair::Embedded).file(written.path());
    let case = Case::on(builder, agent("hello").await).await;
    let status = async || case.call(Form::Rpc03, false, "forbidden").await.status;
    assert_eq!(status().await, 200);
    written.save(&guard("forbidden"));
    until_holds("it is told", async || status().await == 403).await;
    // A wrong one changes nothing.
    written.save(&guard("(forbidden"));
    let failed = async || {
        let config = case.gateway.admin_get("/config").await.unwrap().json();
        !config["failure"].is_null() || config.to_string().contains("regular expression")
    };
    until_holds("it is told", failed).await;
    assert_eq!(status().await, 403);
    written.save(OFF);
    until_holds("it is told", async || status().await == 200).await;
}
