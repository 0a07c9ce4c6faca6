//! Put, read, acknowledged, bounded, pruned.

use a2a_gateway::a2a::agent_reply::Update;
use a2a_gateway::delivery::inbox::{ActivityType, Filter, NewActivity, Source, SourceKind, Start};
use a2a_gateway::rejection::Rejection;
use a2a_gateway::shares::Account;
use serde_json::json;

use super::{Room, id, message, notice, reason, text};
use crate::harness::until_holds;
use crate::on_both_pairs;

on_both_pairs! {
    async fn entries_are_numbered_without_gaps_and_read_in_both_orders(pair: Pair) {
        let room = Room::open(pair, |_| {}).await;
        let dev = id("dev");
        let first = room.put("dev", "1").await;
        let notice = room.inbox.put(notice("dev", "2")).await.unwrap();
        let from_canvas = NewActivity { source: Source::Canvas, ..message("dev", "3") };
        let third = room.inbox.put(from_canvas).await.unwrap();
        let elsewhere = room.put("qa", "x").await;
        assert_eq!([first.seq, notice.seq, third.seq, elsewhere.seq], [1, 2, 3, 1]);
        assert_eq!(first.task_id.as_deref(), Some(&*first.id));
        assert_eq!((notice.task_id, notice.context_id), (None, None));

        let all = Filter::default();
        let page = room.inbox.read_page(&dev, all, Start::Newest, 2).await.unwrap();
        assert_eq!(page.items.iter().map(text).collect::<Vec<_>>(), ["3", "2"]);
        assert!(page.more);
        let page = room.inbox.read_page(&dev, all, Start::Before(page.items[1].seq), 2).await.unwrap();
        assert_eq!(page.items.iter().map(text).collect::<Vec<_>>(), ["1"]);
        assert!(!page.more);
        let page = room.inbox.read_page(&dev, all, Start::After(1), 1).await.unwrap();
        assert_eq!((text(&page.items[0]), page.more, page.oldest), ("2".into(), true, 1));

        let one = &room.inbox.read_page(&dev, all, Start::After(2), 9).await.unwrap().items[0];
        let shown = serde_json::to_value(one).unwrap();
        let expected = json!({"id": third.id, "seq": 3, "activity_type": "a2a_receive", "source_id": null,
            "target_id": "dev", "method": "message/send", "request_body": {"text": "3"}, "response_body": null,
            "status": "submitted", "task_id": third.id, "hops": null, "created_at": third.created_at.to_string()});
        assert_eq!(shown, expected);

        for (filter, texts) in [
            (Filter { kind: Some(ActivityType::A2aReceive), ..all }, vec!["1", "3"]),
            (Filter { kind: Some(ActivityType::Notify), ..all }, vec!["2"]),
            (Filter { kind: Some(ActivityType::DelegateResult), ..all }, vec![]),
            (Filter { source: Some(SourceKind::Agent), ..all }, vec!["1", "2"]),
            (Filter { source: Some(SourceKind::Canvas), ..all }, vec!["3"]),
        ] {
            let page = room.inbox.read_page(&dev, filter, Start::After(0), 9).await.unwrap();
            assert_eq!(page.items.iter().map(text).collect::<Vec<_>>(), texts, "{filter:?}");
        }
        assert!(room.metric("a2a_gateway_inbox_entries_total 4"));
    }

    async fn of_two_with_one_id_in_one_batch_the_second_is_known(pair: Pair) {
        let room = Room::open(pair, |_| {}).await;
        let named = |text: &str| NewActivity {
            id: Some("01990000-0000-7000-8000-000000000000".into()),
            ..notice("dev", text)
        };
        // The first keeps the store busy, so that the others are committed together.
        let puts = [message("dev", "1"), named("2"), named("3"), message("dev", "4")];
        let done = futures_util::future::join_all(puts.map(|new| room.inbox.put(new))).await;
        let done: Vec<_> = done.into_iter().map(|one| one.map(|one| one.seq).map_err(|why| why.reason.as_str())).collect();
        assert_eq!(done, [Ok(1), Ok(2), Err("conflict"), Ok(3)]);
    }

    async fn a_page_holds_so_many_octets_and_at_least_one_entry(pair: Pair) {
        let room = Room::open(pair, |_| {}).await;
        let large = "x".repeat(3 << 20);
        for _ in 0..3 {
            room.put("dev", &large).await;
        }
        room.put("dev", "small").await;
        let after = async |seq| room.inbox.read_page(&id("dev"), Filter::default(), Start::After(seq), 2).await.unwrap();
        // The second begins within 4 MiB, and the third does not.
        let page = after(0).await;
        assert_eq!((page.items.len(), page.more), (2, true));
        let page = room.inbox.read_page(&id("dev"), Filter::default(), Start::After(0), 500).await.unwrap();
        assert_eq!((page.items.len(), page.more), (2, true));
        let page = after(2).await;
        assert_eq!((page.items.len(), page.more), (2, false));
    }

    async fn a_cursor_is_an_entry_of_this_inbox_and_acknowledging_never_goes_back(pair: Pair) {
        let room = Room::open(pair, |_| {}).await;
        let (dev, qa) = (id("dev"), id("qa"));
        let mut ids = Vec::new();
        for n in 1..=5 {
            ids.push(room.put("dev", &n.to_string()).await.id);
        }
        room.put("qa", "x").await;
        assert_eq!(room.inbox.find_position(&dev, &ids[2]).await.unwrap(), 3);
        assert_eq!(reason(room.inbox.find_position(&qa, &ids[2]).await), "cursor_gone");
        assert_eq!(reason(room.inbox.find_position(&dev, "no").await), "cursor_gone");
        assert_eq!(reason(room.inbox.acknowledge(&qa, &ids[2]).await), "cursor_gone");
        assert_eq!(reason(room.inbox.acknowledge(&id("new"), &ids[2]).await), "cursor_gone");
        assert_eq!(room.inbox.acknowledge(&dev, &ids[2]).await.unwrap(), 3);
        assert_eq!(room.inbox.acknowledge(&dev, &ids[0]).await.unwrap(), 0);
        assert_eq!(room.inbox.acknowledge(&dev, &ids[2]).await.unwrap(), 0);
        assert_eq!(room.inbox.acknowledge(&dev, &ids[4]).await.unwrap(), 2);
        assert_eq!(room.inbox.read_acknowledged(&dev).await.unwrap(), 5);
        assert_eq!(room.inbox.read_acknowledged(&qa).await.unwrap(), 0);
        assert_eq!(room.after("dev", 0).await.len(), 5, "what is acknowledged can be read");
    }

    async fn a_full_inbox_refuses_until_its_agent_acknowledges_or_has_answered(pair: Pair) {
        let room = Room::open(pair, |config| config.inbox.max_messages = 3).await;
        let mut put = Vec::new();
        for n in 1..=3 {
            put.push(room.put("dev", &n.to_string()).await.id);
        }
        let refused = room.inbox.put(message("dev", "4")).await.unwrap_err();
        assert_eq!((refused.reason.as_str(), refused.retry_after), ("agent_busy", Some(15)));
        assert_eq!(refused.facts, [("limit", "3".to_owned())]);
        assert!(refused.message.contains("acknowledge"));
        assert!(room.metric("a2a_gateway_inbox_refused_total{why=\"full\"} 1"));
        room.put("qa", "others are not concerned").await;

        room.inbox.acknowledge(&id("dev"), &put[0]).await.unwrap();
        let next = room.put("dev", "4").await;
        assert_eq!(next.seq, 4, "a refusal takes no number");
        assert_eq!(reason(room.inbox.put(message("dev", "5")).await), "agent_busy");

        // Answers without an acknowledgement count from the front on: 2 is open, so 3 helps nobody.
        let done = || Update::Message(json!({"parts": []}));
        let dev = id("dev");
        room.inbox.record_reply(&dev, &put[2], done(), "{}").await.unwrap();
        assert_eq!(reason(room.inbox.put(message("dev", "5")).await), "agent_busy");
        room.inbox.record_reply(&dev, &put[1], done(), "{}").await.unwrap();
        assert_eq!(room.put("dev", "5").await.seq, 5);
        assert_eq!(room.inbox.read_acknowledged(&dev).await.unwrap(), 3);
        room.put("dev", "6").await;
        assert_eq!(reason(room.inbox.put(message("dev", "7")).await), "agent_busy");
    }

    async fn of_many_at_once_a_full_inbox_takes_as_many_as_fit(pair: Pair) {
        let room = Room::open(pair, |config| config.inbox.max_messages = 10).await;
        let puts = (0..40).map(|n| room.inbox.put(message("dev", &n.to_string())));
        let done = futures_util::future::join_all(puts).await;
        let mut taken: Vec<i64> = done.iter().filter_map(|put| Some(put.as_ref().ok()?.seq)).collect();
        taken.sort_unstable();
        assert_eq!(taken, (1..=10).collect::<Vec<_>>());
        assert_eq!(room.after("dev", 0).await.len(), 10);
    }

    async fn each_sender_has_half_of_what_the_others_leave(pair: Pair) {
        let room = Room::open(pair, |config| config.inbox.max_messages = 16).await;
        let take = async |account: Account| {
            let puts = (0..12).map(|_| room.inbox.put(NewActivity { account, ..message("dev", "x") }));
            let (taken, refused): (Vec<_>, Vec<_>) = futures_util::future::join_all(puts).await.into_iter().partition(Result::is_ok);
            let refused: Vec<_> = refused.into_iter().map(Result::unwrap_err).collect();
            assert!(refused.iter().all(|why| why.reason.as_str() == "agent_busy" && why.retry_after == Some(15)));
            (taken.len(), refused.iter().all(Rejection::is_share_exhausted))
        };
        // Account, group, entries that it may have, and whether others may still have some.
        for (own, group, expected) in [
            (1, 0, (8, true)), (2, 0, (4, true)),
            // Users of one org: together they have what one caller may have.
            (3, 9, (1, true)), (4, 9, (1, true)), (5, 9, (0, true)),
            (6, 0, (1, true)), (7, 0, (1, false)), (8, 0, (0, false)),
        ] {
            assert_eq!(take(Account { own, group }).await, expected, "{own}");
        }
        let page = room.inbox.read_page(&id("dev"), Filter::default(), Start::After(0), 20).await.unwrap();
        let ids: Vec<String> = page.items.iter().map(|item| item.id.clone()).collect();
        assert_eq!(ids.len(), 16);
        // Of 16 the others have 6 behind the first 10, which are answered and not acknowledged.
        for one in &ids[..10] {
            room.inbox.record_reply(&id("dev"), one, Update::Message(json!({"parts": []})), "{}").await.unwrap();
        }
        assert_eq!(take(Account::without_group(1)).await, (5, true));
        room.inbox.acknowledge(&id("dev"), &ids[15]).await.unwrap();
        assert_eq!(take(Account::without_group(1)).await, (3, true), "it has 8 again");
        room.inbox.put_notice(&id("dev"), "dev".into(), &serde_json::from_value(json!({"message": "hi"})).unwrap()).await.unwrap();
    }

    async fn what_was_acknowledged_is_kept_for_a_while_and_never_the_last_of_it(pair: Pair) {
        let room = Room::open(pair, |config| config.inbox.max_messages = 4).await;
        let mut last = String::new();
        for n in 1..=10 {
            last = room.put("dev", &n.to_string()).await.id;
            room.inbox.acknowledge(&id("dev"), &last).await.unwrap();
        }
        let left = async || room.after("dev", 0).await;
        until_holds("the rest is pruned", async || left().await.len() <= 4).await;
        assert_eq!(left().await, ["7", "8", "9", "10"]);
        assert_eq!(room.inbox.find_position(&id("dev"), &last).await.unwrap(), 10);
        // Counted behind the deletion.
        until_holds("six are counted", async || room.metric("a2a_gateway_inbox_pruned_total 6")).await;
    }

    async fn what_is_older_than_the_retention_goes_with_its_task(pair: Pair) {
        let room = Room::open(pair, |config| config.inbox.max_messages = 2).await;
        let old = room.put("dev", "old").await;
        room.inbox.record_reply(&id("dev"), &old.id, Update::StatusUpdate(json!({"status": {"state": "working"}})), "{}").await.unwrap();
        room.put("dev", "2").await;
        // As if it was put there a day ago: ids begin with their time.
        let aged = format!("00{}", &old.id[2..]);
        for text in ["DELETE FROM task_updates", "UPDATE activity_logs SET id = $1 WHERE id = $2",
            "INSERT INTO task_updates (task_id, n, body, created_at) SELECT id, 1, '{}', 0 FROM activity_logs WHERE id = $1"] {
            let mut query = sqlx::query(text);
            for value in [&aged, &old.id].into_iter().take(text.matches('$').count()) {
                query = query.bind(value);
            }
            query.execute(room.db.pool()).await.unwrap();
        }
        let replica = room.beside().await;
        until_holds("the old one is gone", async || replica.after("dev", 0).await.len() <= 1).await;
        assert_eq!(replica.after("dev", 0).await, ["2"]);
        let left: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM task_updates").fetch_one(room.db.pool()).await.unwrap();
        assert_eq!(left, 0);
        // What is gone takes no room for ever.
        room.put("dev", "3").await;
        assert_eq!(reason(room.inbox.put(message("dev", "4")).await), "agent_busy");
    }

    async fn what_a_database_cannot_keep_harms_nobody_else(pair: Pair) {
        let room = Room::open(pair, |_| {}).await;
        let bad = NewActivity { method: Some("a\0b".into()), ..message("dev", "x") };
        let (bad, good) = tokio::join!(room.inbox.put(bad), room.inbox.put(message("dev", "\u{0}")));
        assert_eq!(reason(bad), "invalid_params");
        assert_eq!(good.unwrap().seq, 1);
        assert_eq!(room.after("dev", 0).await, ["\u{0}"], "escaped in JSON it is a text like others");
        let plain = NewActivity { request_body: Some("no JSON".into()), ..message("dev", "x") };
        room.inbox.put(plain).await.unwrap();
        let page = room.inbox.read_page(&id("dev"), Filter::default(), Start::After(1), 1).await.unwrap();
        assert_eq!(page.items[0].request_body.as_ref().unwrap().get(), "\"no JSON\"");
    }
}
