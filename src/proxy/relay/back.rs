//! The way back of a translated call: answers and events in the caller's form.

use std::sync::Arc;

use bytes::Bytes;
use http::{StatusCode, header};
use pingora::http::ResponseHeader;

use crate::a2a::bridge::{Exchange, Stream};
use crate::a2a::event::blocks;
use crate::metrics::Metrics;
use crate::proxy::beside;
use crate::proxy::bridged::refuse;
use crate::proxy::respond::internal as unbuilt;
use crate::rejection::{Delivery, Reason, Rejection};

/// The translation of what the agent answers.
pub(in crate::proxy) struct Back {
    exchange: Exchange,
    /// The translation of a stream, once one began.
    stream: Option<Stream>,
    metrics: Arc<Metrics>,
    /// `limits.event_bytes`.
    event_bytes_max: usize,
}

impl Back {
    pub(in crate::proxy) fn new(
        exchange: Exchange,
        metrics: Arc<Metrics>,
        event_bytes_max: usize,
    ) -> Self {
        Self {
            exchange,
            stream: None,
            metrics,
            event_bytes_max,
        }
    }

    /// True if the method streams.
    pub(in crate::proxy) const fn streams(&self) -> bool {
        self.exchange.streams()
    }

    /// Translates a whole answer, and adjusts the head to it. True with it if it is an error.
    ///
    /// # Errors
    /// `agent_protocol_error`.
    pub(in crate::proxy) async fn answer(
        self,
        head: &mut ResponseHeader,
        body: Bytes,
    ) -> Result<(Bytes, bool), Rejection> {
        let status = head.status.as_u16();
        let exchange = self.exchange;
        let answer = beside::on(&body, move |body| {
            let answer = exchange.answer(status, body)?;
            Ok(exchange.as_event(answer))
        })
        .await;
        let answer = answer.map_err(|failure| refuse(&self.metrics, &failure, Delivery::Sent))?;
        self.metrics.bridge.left_out(&answer.left_out);
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_GATEWAY);
        head.set_status(status).map_err(unbuilt)?;
        if let Some(content_type) = answer.content_type {
            head.insert_header(header::CONTENT_TYPE, content_type)
                .map_err(unbuilt)?;
        }
        Ok((answer.body.into(), answer.is_error))
    }

    /// Translates whole events. Returns the reason that one of them has no translation with those before it.
    pub(in crate::proxy) fn events(&mut self, events: &Bytes) -> (Bytes, Option<Rejection>) {
        let stream = self.stream.get_or_insert_with(|| self.exchange.stream());
        let mut written = Vec::with_capacity(events.len() + 256);
        let mut why = None;
        for block in blocks(events) {
            if block.len() > self.event_bytes_max {
                why = Some(too_long(self.event_bytes_max));
                break;
            }
            match stream.block(block, &mut written) {
                Ok(told) => self.metrics.bridge.left_out(&told.left_out),
                Err(failure) => {
                    why = Some(refuse(&self.metrics, &failure, Delivery::Sent));
                    break;
                }
            }
        }
        (written.into(), why)
    }

    /// Rejects an incomplete event that is too long.
    ///
    /// # Errors
    /// `response_too_large`.
    pub(in crate::proxy) fn check_pending(&self, bytes: usize) -> Result<(), Rejection> {
        if bytes > self.event_bytes_max {
            return Err(too_long(self.event_bytes_max));
        }
        Ok(())
    }

    /// Translates the agent's answer about the task into the event with which a subscription of 1.0 begins. True with
    /// it if the task can be followed; an error is the last event.
    ///
    /// # Errors
    /// `agent_protocol_error`.
    pub(in crate::proxy) fn snapshot(
        &mut self,
        status: u16,
        body: &[u8],
    ) -> Result<(Bytes, bool), Rejection> {
        let stream = self.stream.get_or_insert_with(|| self.exchange.stream());
        let told = stream.snapshot(status, body);
        let (event, told) =
            told.map_err(|failure| refuse(&self.metrics, &failure, Delivery::Sent))?;
        self.metrics.bridge.left_out(&told.left_out);
        Ok((event.into(), !told.is_error))
    }
}

fn too_long(limit: usize) -> Rejection {
    let message = format!(
        "an event of the agent is longer than limits.event_bytes, {limit} bytes, the limit for events that are \
         translated between generations of A2A"
    );
    Rejection::new(Reason::ResponseTooLarge, message)
        .fact("limit", limit)
        .delivered(Delivery::Sent)
}
