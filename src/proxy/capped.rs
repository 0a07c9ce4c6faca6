//! Counts calls for the caps of the configuration (`docs/guide/budget-a-run.md`): after all checks and the look for an
//! earlier call with the same key, and before anything is sent.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use super::admit::Allowed;
use super::beside;
use super::record::Exchange;
use super::record::trace::parent;
use crate::a2a::method::Method;
use crate::a2a::run::Named;
use crate::caps::{Caps, Charge, Facts, Names};
use crate::config::Config;
use crate::gateway::Gateway;
use crate::rejection::Rejection;

/// A call that is to be counted when it is accepted, which may be in another task.
pub(in crate::proxy) struct ToCount {
    caps: Arc<Caps>,
    config: Arc<Config>,
    facts: Facts,
}

impl ToCount {
    /// Returns the call with this body, if there are caps and it sends a message.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(in crate::proxy) async fn of(
        gateway: &Gateway,
        exchange: &Exchange,
        allowed: &Allowed,
        call: (&HeaderMap, &Bytes),
    ) -> Result<Option<Self>, Rejection> {
        let config = &exchange.config;
        if !Caps::are_on(config) || !exchange.method.sends() {
            return Ok(None);
        }
        let facts = facts(gateway, exchange.method, allowed, call).await?;
        Ok(Some(Self {
            caps: Arc::clone(&gateway.caps),
            config: Arc::clone(config),
            facts,
        }))
    }

    /// Counts it.
    ///
    /// # Errors
    /// `cap_reached`, `store_unavailable`.
    pub(in crate::proxy) async fn count(&self) -> Result<Box<Charge>, Rejection> {
        let charge = self.caps.count(&self.config, &self.facts).await?;
        Ok(Box::new(charge))
    }

    /// Returns the charge of its bytes and its time; it was counted when it was accepted.
    pub(in crate::proxy) fn measure(&self) -> Box<Charge> {
        Box::new(self.caps.measure(&self.config, &self.facts))
    }
}

/// Counts a call that is to be counted, if there is one.
///
/// # Errors
/// As [`ToCount::count`].
pub(in crate::proxy) async fn count(
    call: Option<&ToCount>,
) -> Result<Option<Box<Charge>>, Rejection> {
    match call {
        Some(call) => call.count().await.map(Some),
        None => Ok(None),
    }
}

/// Counts a call that is about to be sent to its agent. It counts from [`Charge::sent`] on.
///
/// # Errors
/// `cap_reached`, `store_unavailable`.
pub(in crate::proxy) async fn count_before_sending(
    gateway: &Gateway,
    exchange: &mut Exchange,
    allowed: &Allowed,
    call: (&HeaderMap, &Bytes),
) -> Result<(), Rejection> {
    if let Some(call) = ToCount::of(gateway, exchange, allowed, call).await? {
        exchange.charge = Some(call.count().await?);
    }
    Ok(())
}

/// Returns the facts of a permitted call.
///
/// # Errors
/// `store_unavailable`.
async fn facts(
    gateway: &Gateway,
    method: Method,
    Allowed { proof, permit }: &Allowed,
    (headers, body): (&HeaderMap, &Bytes),
) -> Result<Facts, Rejection> {
    let named = beside::on(body, Named::of).await;
    let trace = || parent(headers).map(|context| context.trace_id().to_string());
    let names = Names::of(named, trace);
    Facts::of(&gateway.hierarchy, proof, permit, method, names).await
}
