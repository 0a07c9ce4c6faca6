//! Last heartbeats of instances, as received by this replica, and which of them SQL has. As for workspaces
//! ([`super::HeartbeatBuffer`]), a heartbeat costs no SQL write: its time is written only when SQL's has become old.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;

use super::lease::lag_max;
use crate::config::Live;
use crate::ids::{InstanceId, WorkspaceId};
use crate::store::Unavailable;
use crate::time::Timestamp;
use crate::workspace::{StoredInstance, Workspaces};

/// Instances in one transaction: each is a statement.
const BATCH_MAX: usize = 100;

type InstanceName = (WorkspaceId, InstanceId);

/// Report of a heartbeat: of one instance, or of all instances of a workspace together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InstanceReport {
    /// Share of failed calls; 1 if it is wedged.
    pub(crate) error_rate: f64,
    pub(crate) is_wedged: bool,
    pub(crate) active_tasks: u32,
    pub(crate) current_task: Option<String>,
}

/// Last heartbeat of each instance.
pub(crate) struct InstanceHeartbeats {
    signs: DashMap<InstanceName, LastHeartbeat>,
    /// Instances to write at the next flush; each is marked [`LastHeartbeat::is_due`].
    due: Mutex<Vec<InstanceName>>,
    config: Live,
}

struct LastHeartbeat {
    report: InstanceReport,
    last_seen: Timestamp,
    /// `last_seen` in SQL.
    written: Timestamp,
    is_due: bool,
}

impl InstanceHeartbeats {
    pub(crate) fn new(config: Live) -> Self {
        Self {
            signs: DashMap::new(),
            due: Mutex::default(),
            config,
        }
    }

    /// Stores a heartbeat of an instance. `row`: the row as last read.
    pub(crate) fn record(
        &self,
        id: &WorkspaceId,
        row: &StoredInstance,
        report: InstanceReport,
        now: Timestamp,
    ) {
        let name = (id.clone(), row.id.clone());
        let mut sign = self.signs.entry(name).or_insert_with(|| LastHeartbeat {
            report: report.clone(),
            last_seen: now,
            written: row.last_seen,
            is_due: false,
        });
        sign.report = report;
        sign.last_seen = sign.last_seen.max(now);
        sign.written = sign.written.max(row.last_seen);
        let lag_max = lag_max(self.config.get().registry.heartbeat_ttl);
        if !sign.is_due && sign.last_seen.since(sign.written) >= lag_max {
            sign.is_due = true;
            self.lock_due().push(sign.key().clone());
        }
    }

    /// Returns the report of the workspace: that of the healthiest of its instances that sent a heartbeat here since
    /// `live_since`, and the tasks of all of them. Otherwise each heartbeat of another instance would change the row.
    pub(crate) fn report_of<'r>(
        &self,
        id: &WorkspaceId,
        rows: impl Iterator<Item = &'r StoredInstance>,
        live_since: Timestamp,
    ) -> Option<InstanceReport> {
        let mut all: Option<InstanceReport> = None;
        for row in rows {
            let Some(sign) = self.signs.get(&(id.clone(), row.id.clone())) else {
                continue;
            };
            if sign.last_seen < live_since {
                continue;
            }
            let one = &sign.report;
            all = Some(match all {
                None => one.clone(),
                Some(all) => InstanceReport {
                    error_rate: all.error_rate.min(one.error_rate),
                    is_wedged: all.is_wedged && one.is_wedged,
                    active_tasks: all.active_tasks.saturating_add(one.active_tasks),
                    current_task: all.current_task.or_else(|| one.current_task.clone()),
                },
            });
        }
        all
    }

    /// True if each of these instances sent a heartbeat here since `live_since`.
    pub(crate) fn has_all<'r>(
        &self,
        id: &WorkspaceId,
        mut rows: impl Iterator<Item = &'r StoredInstance>,
        live_since: Timestamp,
    ) -> bool {
        rows.all(|row| {
            let sign = self.signs.get(&(id.clone(), row.id.clone()));
            sign.is_some_and(|sign| sign.last_seen >= live_since)
        })
    }

    /// Returns the last sign of life of an instance: SQL's, or a later heartbeat at this replica.
    pub(crate) fn last_sign_of(&self, id: &WorkspaceId, row: &StoredInstance) -> Timestamp {
        let here = self.signs.get(&(id.clone(), row.id.clone()));
        here.map_or(row.last_seen, |sign| sign.last_seen.max(row.last_seen))
    }

    /// Queues all heartbeats that SQL does not have, at shutdown.
    pub(crate) fn queue_all(&self) {
        for mut sign in self.signs.iter_mut() {
            if !sign.is_due && sign.written < sign.last_seen {
                sign.is_due = true;
                self.lock_due().push(sign.key().clone());
            }
        }
    }

    /// Drops instances without a heartbeat here since `before`.
    pub(crate) fn drop_silent(&self, before: Timestamp) {
        self.signs
            .retain(|_, sign| sign.is_due || sign.last_seen >= before);
    }

    /// Writes the queued heartbeats. They stay queued until they are written.
    pub(crate) async fn flush(&self, workspaces: &Workspaces) -> Result<(), Unavailable> {
        let due = std::mem::take(&mut *self.lock_due());
        let mut rest = due.as_slice();
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(rest.len().min(BATCH_MAX));
            let seen = batch.iter().filter_map(|name| {
                let sign = self.signs.get(name)?;
                Some((name.0.clone(), name.1.clone(), sign.last_seen))
            });
            let seen: Vec<_> = seen.collect();
            if let Err(error) = workspaces.instances.touch_many(&seen).await {
                self.lock_due().extend_from_slice(rest);
                return Err(error);
            }
            for (id, instance, at) in seen {
                if let Some(mut sign) = self.signs.get_mut(&(id, instance)) {
                    sign.written = sign.written.max(at);
                    sign.is_due = false;
                }
            }
            rest = later;
        }
        Ok(())
    }

    fn lock_due(&self) -> MutexGuard<'_, Vec<InstanceName>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Config;

    fn row(id: &str, last_seen: i64) -> StoredInstance {
        StoredInstance {
            id: InstanceId::parse(id).unwrap(),
            url: "http://127.0.0.1:9001/".to_owned(),
            internal_url: None,
            is_draining: false,
            has_auth: false,
            registered_at: Timestamp(0),
            last_seen: Timestamp(last_seen),
        }
    }

    fn report(error_rate: f64, active_tasks: u32, current_task: Option<&str>) -> InstanceReport {
        InstanceReport {
            error_rate,
            is_wedged: error_rate >= 1.0,
            active_tasks,
            current_task: current_task.map(str::to_owned),
        }
    }

    fn signs() -> InstanceHeartbeats {
        let mut config: Config = toml::from_str(crate::config::load::DEFAULT).unwrap();
        config.registry.heartbeat_ttl = Duration::from_millis(90);
        InstanceHeartbeats::new(config.into())
    }

    #[test]
    fn only_what_sql_has_not_heard_for_long_is_due() {
        let (signs, id) = (signs(), WorkspaceId::parse("a").unwrap());
        let one = row("one", 100);
        let beat = |at: i64| signs.record(&id, &one, report(0.0, 0, None), Timestamp(at));
        beat(130);
        assert_eq!(signs.lock_due().len(), 0, "30 ms behind");
        beat(145);
        beat(150);
        assert_eq!(signs.lock_due().len(), 1, "45 ms behind, and once");
        assert_eq!(signs.last_sign_of(&id, &one), Timestamp(150));
        signs.drop_silent(Timestamp(200));
        assert_eq!(signs.last_sign_of(&id, &one), Timestamp(150), "it is due");
        assert_eq!(signs.last_sign_of(&id, &row("one", 160)), Timestamp(160));
        assert_eq!(signs.last_sign_of(&id, &row("two", 7)), Timestamp(7));
    }

    #[test]
    fn the_report_of_a_workspace_is_that_of_its_healthiest_instance_and_all_tasks() {
        let (signs, id) = (signs(), WorkspaceId::parse("a").unwrap());
        let rows = [row("one", 0), row("two", 0), row("three", 0)];
        let all = |since: i64| signs.report_of(&id, rows.iter(), Timestamp(since));
        assert_eq!(all(0), None);
        signs.record(&id, &rows[0], report(1.0, 1, None), Timestamp(10));
        assert_eq!(all(0), Some(report(1.0, 1, None)));
        signs.record(&id, &rows[1], report(0.2, 2, Some("b")), Timestamp(20));
        assert_eq!(all(0), Some(report(0.2, 3, Some("b"))));
        signs.record(&id, &rows[2], report(1.0, 4, Some("c")), Timestamp(30));
        assert_eq!(all(0), Some(report(0.2, 7, Some("b"))));
        assert_eq!(
            all(25),
            Some(report(1.0, 4, Some("c"))),
            "the others are silent"
        );
    }
}
