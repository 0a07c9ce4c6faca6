//! Redis Cluster: slots that move, a master that hands over, one that dies.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Replicas, recovered};
use crate::harness::cluster::Cluster;
use crate::harness::{calmly, servers};

/// Time for the nodes to find a master dead and to make its replica one, and for the gateways to follow.
const FOLLOWED: Duration = Duration::from_secs(15);

/// The channel of invalidations.
const KEY: &str = "gw:invalidate";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_and_masters_change_under_load() {
    calmly(async || {
        let cluster = Cluster::start();
        let sql = servers::postgres().database();
        let replicas = Replicas::new(&sql, &cluster.url()).await;
        replicas.are_one("before").await;
        let (over, load) = replicas.load();

        // The slots of each channel and key move to another master, and others back.
        let from = cluster.owner(KEY);
        let to = cluster.owner_besides(from);
        cluster.reshard(from, to, 2000);
        let took = recovered(&replicas, "moved").await;
        println!("2000 slots moved: one gateway again after {took:?}");
        replicas.are_one("moved").await;

        // A planned change: the old master goes on, as a replica.
        let old = cluster.owner(KEY);
        cluster.replica(old).command(&["CLUSTER", "FAILOVER"]);
        cluster.until_owned_by_another(KEY, old);
        let took = recovered(&replicas, "handed-over").await;
        println!("master handed over: one gateway again after {took:?}");
        assert!(took < FOLLOWED, "{took:?}");
        replicas.are_one("handed-over").await;

        // It dies; its replica becomes the master.
        let master = cluster.owner(KEY);
        let killed = Instant::now();
        master.kill();
        cluster.until_owned_by_another(KEY, master);
        let elected = killed.elapsed();
        let took = recovered(&replicas, "killed").await;
        println!("master killed: another after {elected:?}, one gateway again {took:?} later");
        assert!(took < FOLLOWED, "{took:?}");
        replicas.are_one("killed").await;

        // It comes back, and becomes a replica.
        master.restart();
        replicas.are_one("back").await;
        over.store(true, Ordering::Release);
        println!("{} calls, none refused", load.await.unwrap());
    })
    .await;
}
