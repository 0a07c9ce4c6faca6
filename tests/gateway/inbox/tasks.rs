//! Tasks that messages begin: answered, continued, given up.

use a2a_gateway::a2a::Generation;
use a2a_gateway::a2a::agent_reply::Update;
use a2a_gateway::a2a::state::TaskState;
use a2a_gateway::delivery::inbox::{InboxTask, NewActivity, Source, TaskQuery};
use serde_json::{Value, json};

use super::{Room, id, message, notice, reason};
use crate::harness::Pair;
use crate::on_both_pairs;

fn status(state: &str) -> Update {
    Update::StatusUpdate(json!({"status": {"state": state}}))
}

fn artifact(text: &str) -> Update {
    Update::ArtifactUpdate(json!({"append": true, "artifact":
        {"artifactId": "a", "parts": [{"kind": "text", "text": text}]}}))
}

on_both_pairs! {
    async fn a_task_is_what_its_agent_said_of_it(pair: Pair) {
        let room = Room::open(pair, |_| {}).await;
        let dev = id("dev");
        let begun = NewActivity { context_id: Some("talk".into()), ..message("dev", "hi") };
        let begun = room.inbox.put(begun).await.unwrap();
        let task = room.inbox.find_task(&dev, &begun.id).await.unwrap().unwrap();
        assert_eq!((task.state, task.updates, &*task.owner), (TaskState::Submitted, 0, "caller"));
        assert_eq!((&*task.context_id, begun.context_id.as_deref()), ("talk", Some("talk")));
        let document = room.inbox.read_document(&task).await.unwrap().0;
        assert_eq!(document, json!({"kind": "task", "id": begun.id, "contextId": "talk",
            "status": {"state": "submitted", "timestamp": begun.created_at.to_string()}}));

        room.inbox.record_reply(&dev, &begun.id, status("working"), "1").await.unwrap();
        for piece in ["a", "b"] {
            room.inbox.record_reply(&dev, &begun.id, artifact(piece), "2").await.unwrap();
        }
        let task = room.inbox.record_reply(&dev, &begun.id, status("completed"), "{\"last\":1}").await.unwrap();
        assert_eq!((task.state, task.updates), (TaskState::Completed, 4));
        let document = room.inbox.read_document(&task).await.unwrap().0;
        assert_eq!(document["artifacts"][0]["parts"].as_array().unwrap().len(), 2);
        assert_eq!(document["status"]["state"], "completed");

        let updates = room.inbox.updates_after(&begun.id, 2).await.unwrap();
        assert_eq!(updates.iter().map(|one| one.n).collect::<Vec<_>>(), [3, 4]);
        let Update::StatusUpdate(event) = &updates[1].update else { panic!("{updates:?}") };
        assert_eq!((&event["taskId"], &event["final"]), (&Value::from(begun.id.clone()), &json!(true)));

        let page = room.inbox.read_page(&dev, Default::default(), a2a_gateway::delivery::inbox::Start::Newest, 9);
        let item = &page.await.unwrap().items[0];
        assert_eq!(item.status, "completed");
        assert_eq!(item.response_body.as_ref().unwrap().get(), "{\"last\":1}");

        let late = room.inbox.record_reply(&dev, &begun.id, status("working"), "x").await;
        assert_eq!(reason(late), "conflict");
        let task = room.inbox.find_task(&dev, &begun.id).await.unwrap().unwrap();
        assert_eq!((task.state, task.updates), (TaskState::Completed, 4));
    }

    async fn an_update_that_cannot_be_read_is_left_out(pair: Pair) {
        let room = Room::open(pair, |_| {}).await;
        let dev = id("dev");
        let begun = room.put("dev", "hi").await;
        for piece in ["a", "b"] {
            room.inbox.record_reply(&dev, &begun.id, artifact(piece), "{}").await.unwrap();
        }
        let task = room.inbox.record_reply(&dev, &begun.id, status("completed"), "{}").await.unwrap();
        let spoil = async |n: i64| {
            let query = sqlx::query("UPDATE task_updates SET body = '[' WHERE n = $1").bind(n);
            query.execute(room.db.pool()).await.unwrap();
        };
        spoil(1).await;
        let updates = room.inbox.updates_after(&begun.id, 0).await.unwrap();
        assert_eq!(updates.iter().map(|one| one.n).collect::<Vec<_>>(), [2, 3]);
        let document = room.inbox.read_document(&task).await.unwrap().0;
        assert_eq!(document["artifacts"][0]["parts"].as_array().unwrap().len(), 1);
        spoil(3).await;
        let document = room.inbox.read_document(&task).await.unwrap().0;
        assert_eq!(document["status"]["state"], "completed", "as its row says");
        spoil(2).await;
        assert_eq!(room.inbox.updates_after(&begun.id, 0).await.unwrap(), []);
    }

    async fn a_page_of_tasks_ends_where_there_is_much_to_read(pair: Pair) {
        let room = Room::open(pair, |_| {}).await;
        let dev = id("dev");
        let mut ids = Vec::new();
        for _ in 0..3 {
            let begun = room.put("dev", "hi").await;
            room.inbox.record_reply(&dev, &begun.id, artifact(&"x".repeat(3 << 20)), "{}").await.unwrap();
            ids.insert(0, begun.id);
        }
        let wanted = TaskQuery { limit: 50, ..TaskQuery::default() };
        let page = room.inbox.tasks_of(&dev, &wanted).await.unwrap();
        let names = |tasks: Vec<InboxTask>| tasks.into_iter().map(|task| task.id).collect::<Vec<_>>();
        assert_eq!(names(page.tasks), ids[..2]);
        let rest = TaskQuery { before: page.next, ..wanted };
        let page = room.inbox.tasks_of(&dev, &rest).await.unwrap();
        assert_eq!((names(page.tasks), page.next), (ids[2..].to_vec(), None));
    }

    async fn nobody_answers_for_another(pair: Pair) {
        let room = Room::open(pair, |_| {}).await;
        let begun = room.put("dev", "hi").await;
        let said = room.inbox.put(notice("dev", "hi")).await.unwrap();
        for (target, entry) in [("qa", &*begun.id), ("dev", "no"), ("dev", &*said.id)] {
            let reply = room.inbox.record_reply(&id(target), entry, status("working"), "{}").await;
            assert_eq!(reason(reply), "task_not_found", "{target} {entry}");
        }
        for wrong in [status("done"), Update::Message(json!(1))] {
            let reply = room.inbox.record_reply(&id("dev"), &begun.id, wrong, "{}").await;
            assert_eq!(reason(reply), "invalid_params");
        }
        assert!(room.inbox.find_task(&id("qa"), &begun.id).await.unwrap().is_none());
        assert!(room.inbox.find_task(&id("dev"), &said.id).await.unwrap().is_none());
        assert_eq!(room.inbox.target_of(&begun.id).await.unwrap(), Some(id("dev")));
        assert_eq!(room.inbox.target_of(&said.id).await.unwrap(), None);
    }

    async fn a_task_goes_on_with_another_message_and_ends_once(pair: Pair) {
        let room = Room::open(pair, |_| {}).await;
        let dev = id("dev");
        let begun = room.put("dev", "hi").await;
        room.inbox.record_reply(&dev, &begun.id, status("input-required"), "{}").await.unwrap();
        let more = |task: &str| NewActivity { continues: Some(task.to_owned()), context_id: Some("other".into()), ..message("dev", "more") };
        let second = room.inbox.put(more(&begun.id)).await.unwrap();
        assert_ne!(second.id, begun.id);
        assert_eq!((second.task_id, second.context_id), (Some(begun.id.clone()), begun.context_id.clone()));
        let task = room.inbox.find_task(&dev, &begun.id).await.unwrap().unwrap();
        assert_eq!((task.state, task.updates), (TaskState::Submitted, 2));
        assert!(room.inbox.find_task(&dev, &second.id).await.unwrap().is_none(), "an entry, and no task");

        // An answer to either entry is one to the task.
        let answer = Update::Message(json!({"messageId": "m", "parts": []}));
        let task = room.inbox.record_reply(&dev, &second.id, answer, "{}").await.unwrap();
        assert_eq!((&task.id, task.state), (&begun.id, TaskState::Completed));
        let page = room.inbox.read_page(&dev, Default::default(), a2a_gateway::delivery::inbox::Start::After(0), 9).await.unwrap();
        assert_eq!(page.items.iter().map(|item| &*item.status).collect::<Vec<_>>(), ["completed", "completed"]);

        assert_eq!(reason(room.inbox.put(more(&begun.id)).await), "invalid_params");
        assert_eq!(reason(room.inbox.put(more("no")).await), "task_not_found");
        assert_eq!(reason(room.inbox.put(more(&second.id)).await), "task_not_found");
        let elsewhere = NewActivity { continues: Some(begun.id.clone()), ..message("qa", "x") };
        assert_eq!(reason(room.inbox.put(elsewhere).await), "task_not_found");
        assert_eq!(room.put("dev", "next").await.seq, 3, "refusals take no number");
    }

    async fn giving_a_task_up_tells_its_agent_also_when_the_inbox_is_full(pair: Pair) {
        let room = Room::open(pair, |config| config.inbox.max_messages = 1).await;
        let dev = id("dev");
        let begun = room.put("dev", "hi").await;
        assert_eq!(reason(room.inbox.put(message("dev", "x")).await), "agent_busy");
        let cancel = async || room.inbox.cancel(&dev, &begun.id, (Source::Canvas, "caller".into()), Generation::V0).await;
        let task = cancel().await.unwrap();
        assert_eq!((task.state, task.updates), (TaskState::Canceled, 1));
        assert_eq!(reason(cancel().await), "invalid_params");
        assert_eq!(reason(room.inbox.record_reply(&dev, &begun.id, status("completed"), "{}").await), "conflict");
        let page = room.inbox.read_page(&dev, Default::default(), a2a_gateway::delivery::inbox::Start::After(0), 9).await.unwrap();
        let told = &page.items[1];
        assert_eq!((told.method.as_deref(), told.task_id.as_deref()), (Some("tasks/cancel"), Some(&*begun.id)));
        let body: Value = serde_json::from_str(told.request_body.as_ref().unwrap().get()).unwrap();
        assert_eq!(body["params"]["id"], begun.id);
        assert_eq!(page.items.iter().map(|item| &*item.status).collect::<Vec<_>>(), ["canceled", "canceled"]);
        assert_eq!(room.put("dev", "next").await.seq, 3, "both are over");
        let document = room.inbox.read_document(&task).await.unwrap().0;
        assert_eq!(document["status"]["state"], "canceled");
    }

    async fn of_two_answers_at_once_each_has_its_number_and_one_is_the_last(pair: Pair) {
        let room = Room::open(pair, |_| {}).await;
        let replica = match pair { Pair::External => room.beside().await, Pair::Embedded => Room { inbox: room.inbox.clone(), ..room.clone() } };
        let begun = room.put("dev", "hi").await;
        let dev = id("dev");
        let pieces = (0..40).map(|n| {
            let inbox = if n % 2 == 0 { &room.inbox } else { &replica.inbox };
            inbox.record_reply(&dev, &begun.id, artifact("x"), "{}")
        });
        for done in futures_util::future::join_all(pieces).await {
            done.unwrap();
        }
        let ends = [&room, &replica].map(|one| one.inbox.record_reply(&dev, &begun.id, status("completed"), "{}"));
        let ends = futures_util::future::join_all(ends).await;
        assert_eq!(ends.iter().filter(|end| end.is_ok()).count(), 1);
        let updates = room.inbox.updates_after(&begun.id, 0).await.unwrap();
        assert_eq!(updates.iter().map(|one| one.n).collect::<Vec<_>>(), (1..=41).collect::<Vec<_>>());
    }

    async fn updates_have_a_bound_and_a_last_one_always_fits(pair: Pair) {
        let room = Room::open(pair, |config| config.limits.response_bytes = toml::Value::from("20KiB").try_into().unwrap()).await;
        let dev = id("dev");
        let begun = room.put("dev", "hi").await;
        let large = || artifact(&"x".repeat(8 << 10));
        room.inbox.record_reply(&dev, &begun.id, large(), "{}").await.unwrap();
        room.inbox.record_reply(&dev, &begun.id, large(), "{}").await.unwrap();
        let refused = room.inbox.record_reply(&dev, &begun.id, large(), "{}").await.unwrap_err();
        assert_eq!((refused.reason.as_str(), &*refused.facts[0].1), ("body_too_large", "20480"));
        sqlx::query("UPDATE activity_logs SET updates = 10000").execute(room.db.pool()).await.unwrap();
        assert_eq!(reason(room.inbox.record_reply(&dev, &begun.id, artifact("x"), "{}").await), "conflict");
        let more = NewActivity { continues: Some(begun.id.clone()), ..message("dev", "more") };
        assert_eq!(reason(room.inbox.put(more).await), "invalid_params");
        let task = room.inbox.record_reply(&dev, &begun.id, status("failed"), "{}").await.unwrap();
        assert_eq!(task.state, TaskState::Failed);
    }

    async fn tasks_are_listed_newest_first_by_owner_conversation_and_state(pair: Pair) {
        let room = Room::open(pair, |_| {}).await;
        let dev = id("dev");
        let mut ids = Vec::new();
        for (owner, context) in [("ann", "a"), ("bob", "a"), ("ann", "b"), ("ann", "a")] {
            let new = NewActivity { owner: owner.into(), context_id: Some(context.into()), ..message("dev", "x") };
            ids.push(room.inbox.put(new).await.unwrap().id);
        }
        room.put("qa", "x").await;
        room.inbox.record_reply(&dev, &ids[3], status("working"), "{}").await.unwrap();
        let list = async |wanted: TaskQuery<'_>| {
            let page = room.inbox.tasks_of(&dev, &wanted).await.unwrap();
            let at = |task: &String| ids.iter().position(|id| id == task).unwrap();
            (page.tasks.iter().map(|task| at(&task.id)).collect::<Vec<_>>(), page.next)
        };
        let all = TaskQuery { limit: 9, ..TaskQuery::default() };
        assert_eq!(list(all.clone()).await, (vec![3, 2, 1, 0], None));
        let ann = TaskQuery { owner: Some("ann"), ..all.clone() };
        assert_eq!(list(ann.clone()).await, (vec![3, 2, 0], None));
        assert_eq!(list(TaskQuery { context: Some("a"), ..ann.clone() }).await.0, [3, 0]);
        assert_eq!(list(TaskQuery { state: Some(TaskState::Working), ..ann.clone() }).await.0, [3]);
        let (first, next) = list(TaskQuery { limit: 2, ..ann.clone() }).await;
        assert_eq!(first, [3, 2]);
        assert_eq!(list(TaskQuery { before: next, limit: 2, ..ann }).await, (vec![0], None));
    }
}
