//! Dashboards, alerts and exemplars on a real Prometheus.

mod exemplars;
mod observed;

use crate::traces::{Case, SPAN, TRACE, traced};
