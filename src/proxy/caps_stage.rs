//! Counts calls for the caps of the configuration (`docs/guide/budget-a-run.md`): after all checks and the look for an
//! earlier call with the same key, and before anything is sent.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use super::admit::AllowedCaller;
use super::offload;
use super::record::Exchange;
use super::record::trace::parent_context;
use crate::a2a::call_names::CallNames;
use crate::a2a::method::Method;
use crate::caps::{Caps, Charge, Facts, Names};
use crate::config::Config;
use crate::gateway::Gateway;
use crate::rejection::Rejection;

/// A call that is to be counted when it is accepted, which may be in another task.
pub(in crate::proxy) struct UncountedCall {
    caps: Arc<Caps>,
    config: Arc<Config>,
    facts: Facts,
}

impl UncountedCall {
    /// Returns the call with this body, if there are caps and it sends a message.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(in crate::proxy) async fn from_call(
        gateway: &Gateway,
        exchange: &Exchange,
        allowed: &AllowedCaller,
        call: (&HeaderMap, &Bytes),
    ) -> Result<Option<Self>, Rejection> {
        let config = &exchange.config;
        if !Caps::are_configured(config) || !exchange.method.sends() {
            return Ok(None);
        }
        let facts = load_facts(gateway, exchange.method, allowed, call).await?;
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
        let charge = self.caps.count_call(&self.config, &self.facts).await?;
        Ok(Box::new(charge))
    }

    /// Returns the charge of its bytes and its time; it was counted when it was accepted.
    pub(in crate::proxy) fn measure(&self) -> Box<Charge> {
        Box::new(self.caps.measure_call(&self.config, &self.facts))
    }
}

/// Counts a call that is to be counted, if there is one.
///
/// # Errors
/// As [`UncountedCall::count`].
pub(in crate::proxy) async fn count_call(
    call: Option<&UncountedCall>,
) -> Result<Option<Box<Charge>>, Rejection> {
    match call {
        Some(call) => call.count().await.map(Some),
        None => Ok(None),
    }
}

/// Counts a call that is about to be sent to its agent. It counts from [`Charge::mark_sent`] on.
///
/// # Errors
/// `cap_reached`, `store_unavailable`.
pub(in crate::proxy) async fn count_before_sending(
    gateway: &Gateway,
    exchange: &mut Exchange,
    allowed: &AllowedCaller,
    call: (&HeaderMap, &Bytes),
) -> Result<(), Rejection> {
    if let Some(call) = UncountedCall::from_call(gateway, exchange, allowed, call).await? {
        exchange.charge = Some(call.count().await?);
    }
    Ok(())
}

/// Returns the facts of a permitted call.
///
/// # Errors
/// `store_unavailable`.
async fn load_facts(
    gateway: &Gateway,
    method: Method,
    AllowedCaller { proof, permit }: &AllowedCaller,
    (headers, body): (&HeaderMap, &Bytes),
) -> Result<Facts, Rejection> {
    let named = offload::run_on_body(body, CallNames::from_body).await;
    let trace = || parent_context(headers).map(|context| context.trace_id().to_string());
    let names = Names::from_message(named, trace);
    Facts::for_call(&gateway.hierarchy, proof, permit, method, names).await
}
