//! Limits over accounts, groups and addresses, and what replicas tell each other of them.

use super::*;
use crate::identity::proof::open_proof;

fn rates(caller_per_second: u32, caller_burst: u32, failures_per_second: u32) -> Rates {
    Rates::new(&config::Rate {
        caller_per_second,
        caller_burst,
        org_users_per_second: 0,
        org_users_burst: 0,
        failures_per_second,
        cards_per_second: 0,
    })
}

fn proof(own: u64) -> Proof {
    Proof {
        account: Account::without_group(own),
        ..open_proof()
    }
}

#[test]
fn each_account_has_its_own_allowance() {
    let rates = rates(1, 3, 0);
    for _ in 0..3 {
        rates.admit(&proof(1)).unwrap();
    }
    let refused = rates.admit(&proof(1)).unwrap_err();
    assert_eq!(refused.reason, Reason::RateLimited);
    assert_eq!(refused.retry_after, Some(1));
    assert!(refused.facts.contains(&("limit", "3".into())));
    rates.admit(&proof(2)).unwrap();
}

#[test]
fn those_of_a_group_have_a_limit_together_that_one_alone_does_not_use_up() {
    let rates = Rates::new(&config::Rate {
        caller_per_second: 1,
        caller_burst: 3,
        org_users_per_second: 1,
        org_users_burst: 5,
        failures_per_second: 0,
        cards_per_second: 0,
    });
    let user = |own| Proof {
        account: Account { own, group: 9 },
        ..open_proof()
    };
    let passed = |own| (0..50).filter(|_| rates.admit(&user(own)).is_ok()).count();
    assert_eq!([1, 2, 3].map(passed), [3, 2, 0]);
    assert!(rates.peek(user(3).account).is_err());
    let refused = rates.admit(&user(4)).unwrap_err();
    assert!(refused.message.contains("rate.org_users_per_second"));
    rates.admit(&proof(5)).unwrap();
}

fn refused() -> Rejection {
    Rejection::new(Reason::Unauthenticated, "no")
}

#[test]
fn zero_switches_off() {
    let rates = rates(0, 0, 0);
    let client = IpAddr::from([192, 0, 2, 1]);
    for _ in 0..1000 {
        rates.admit(&proof(1)).unwrap();
        assert_eq!(
            rates.count_failure(client, refused()).reason,
            Reason::Unauthenticated
        );
    }
}

#[test]
fn an_address_that_fails_too_often_is_told_so_and_others_are_not() {
    let rates = rates(0, 0, 2);
    let said = |client: &str, rejection| {
        rates
            .count_failure(client.parse().unwrap(), rejection)
            .reason
    };
    for _ in 0..2 {
        assert_eq!(said("2001:db8::1", refused()), Reason::Unauthenticated);
    }
    for same in ["2001:db8::1", "2001:db8::ffff"] {
        assert_eq!(said(same, refused()), Reason::RateLimited);
    }
    for other in ["2001:db8:0:1::1", "::ffff:192.0.2.1"] {
        assert_eq!(said(other, refused()), Reason::Unauthenticated);
    }
    // What is no failure of proof is neither counted nor replaced.
    let offline = Rejection::new(Reason::WorkspaceOffline, "later");
    assert_eq!(said("2001:db8::1", offline), Reason::WorkspaceOffline);
}

#[test]
fn an_allowance_is_told_in_the_drafts_fields() {
    let rates = rates(1, 3, 0);
    let allowance = rates.admit(&proof(1)).unwrap().unwrap();
    let fields = allowance.header_fields().map(|(name, value)| {
        let value = value.to_str().unwrap().to_owned();
        format!("{name}: {value}")
    });
    let expected = [
        "ratelimit-limit: 3",
        "ratelimit-remaining: 2",
        "ratelimit-reset: 1",
        "ratelimit-policy: 3;w=3",
    ];
    assert_eq!(fields, expected);
    let told = allowance.apply_to(refused()).fields;
    let told: Vec<_> = told.iter().map(|(n, v)| format!("{n}: {v}")).collect();
    assert_eq!(told, expected);
}

#[test]
fn limits_change_while_they_are_in_use() {
    let rates = rates(1, 2, 0);
    for _ in 0..2 {
        rates.admit(&proof(1)).unwrap();
    }
    assert!(rates.admit(&proof(1)).is_err());
    let mut settings = config::Rate {
        caller_per_second: 0,
        caller_burst: 0,
        org_users_per_second: 0,
        org_users_burst: 0,
        failures_per_second: 0,
        cards_per_second: 0,
    };
    rates.set(&settings);
    assert!(rates.admit(&proof(1)).unwrap().is_none());
    settings.caller_per_second = 1;
    settings.caller_burst = 50;
    rates.set(&settings);
    assert!(rates.admit(&proof(1)).unwrap().is_some());
}

#[test]
fn what_one_let_pass_the_others_owe() {
    let [one, other] = [(); 2].map(|()| rates(1, 100, 5));
    let client = IpAddr::from([192, 0, 2, 1]);
    assert_eq!(one.pending_update(), None);
    for _ in 0..60 {
        one.admit(&proof(7)).unwrap();
    }
    assert_eq!(one.pending_update(), None, "nobody to tell");
    one.publishing.store(true, Ordering::Relaxed);
    for _ in 0..40 {
        one.admit(&proof(7)).unwrap();
    }
    for _ in 0..3 {
        let _ = one.count_failure(client, refused());
    }
    let (told, count, _) = one.pending_update().unwrap();
    assert_eq!(count, 43);
    assert_eq!(one.pending_update(), None, "told once");
    assert_eq!(one.apply_update(&told), 0, "our own word");
    assert_eq!(other.apply_update(&told), 43);
    let left = other.admit(&proof(7)).unwrap().unwrap();
    assert_eq!(left.remaining, 59);
    for _ in 0..2 {
        let said = other.count_failure(client, refused()).reason;
        assert_eq!(said, Reason::Unauthenticated);
    }
    let said = other.count_failure(client, refused()).reason;
    assert_eq!(said, Reason::RateLimited);
    // One that stood still hears old news.
    other.on_clock_jump();
    assert_eq!(other.apply_update(&told), 0);
}

#[test]
fn what_is_no_message_of_ours_changes_nothing() {
    let rates = rates(1, 100, 5);
    for message in [
        "",
        " ",
        "zz c7*1",
        "c7*1",
        "0",
        "0 c",
        "0 c7",
        "0 c7*",
        "0 c*1",
        "0 c7*-1",
        "0 c7*100000000",
        "0 x7*1",
        "0 \u{e9}7*1",
        "0  c7**1",
    ] {
        assert_eq!(rates.apply_update(message), 0, "{message:?}");
    }
    let long = format!("0{}", " c7*1".repeat(100_000));
    assert_eq!(rates.apply_update(&long), 512);
}
