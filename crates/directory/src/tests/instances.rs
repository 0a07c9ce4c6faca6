//! Leases of named instances between replicas.

use super::*;
use access::workspace::StoredInstance;
use kernel::ids::InstanceId;

fn name(text: &str) -> InstanceId {
    InstanceId::parse(text).unwrap()
}

/// A workspace `a` with the instances `one` and `two`, after the time in which a missing lease proves nothing.
async fn room_of_two() -> Room {
    let room = room().await;
    let registrations = &room.directory.registrations;
    registrations
        .create(&creation("a"), Run::Real)
        .await
        .unwrap();
    for (instance, port) in [("one", 9001), ("two", 9002)] {
        let registration = Registration {
            instance: Some(name(instance)),
            url: Some(format!("http://127.0.0.1:{port}/a2a")),
            ..registration("a")
        };
        let registered = registrations.register(&registration, &Registrar::Itself);
        registered.await.unwrap();
    }
    pass(TTL + Duration::from_secs(1)).await;
    room.beats_of_two().await;
    room
}

impl Room {
    async fn beats_of_two(&self) {
        for instance in ["one", "two"] {
            let beat = Heartbeat {
                instance: Some(name(instance)),
                ..Heartbeat::default()
            };
            self.beat("a", &beat).await;
        }
    }

    async fn rows(&self) -> Vec<StoredInstance> {
        self.workspaces.instances.find_all(&id("a")).await.unwrap()
    }

    /// Number of instances that can be called.
    async fn called(&self) -> usize {
        self.agent("a").await.instances.len()
    }
}

#[tokio::test]
async fn an_instance_that_registers_while_it_deregisters_keeps_its_lease() {
    let room = room_of_two().await;
    let registrations = &room.directory.registrations;
    // The row was deleted, and is there again before the lease is deleted.
    let rows = room.rows().await;
    registrations
        .end_leases(&id("a"), &rows[..1])
        .await
        .unwrap();
    room.coherence.apply(&Invalidation::Everything).await;
    assert_eq!(room.called().await, 2);
    // One that stays away has none.
    let (a, one) = (id("a"), name("one"));
    registrations.deregister_instance(&a, &one).await.unwrap();
    let leases = &registrations.presence.leases;
    let renewed = leases.renewal_time(&a, Some(&one), Timestamp::now());
    assert_eq!(renewed.await.unwrap(), None);
    assert_eq!(room.called().await, 1);
}

#[tokio::test]
async fn an_instance_whose_heartbeats_go_to_another_replica_is_called_again_soon() {
    let room = room_of_two().await;
    let leases = &room.directory.registrations.presence.leases;
    let (a, one) = (id("a"), name("one"));
    leases.end_instances(&a, &[&one]).await.unwrap();
    room.coherence
        .apply(&Invalidation::Workspace(id("a")))
        .await;
    assert_eq!(room.called().await, 1);
    // To the other replica it never was offline, so that one announces nothing.
    leases.renew(&a, &[&one], Timestamp::now()).await.unwrap();
    let asked = room.metrics.store_operations();
    assert_eq!(room.called().await, 1);
    assert_eq!(room.metrics.store_operations(), asked, "not at each call");
    pass(Duration::from_secs(5)).await;
    assert_eq!(room.called().await, 2);
}
