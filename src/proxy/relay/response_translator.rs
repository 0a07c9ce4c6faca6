//! The way back of a translated call: answers and events in the caller's form.

use std::sync::Arc;

use bytes::Bytes;
use http::{StatusCode, header};
use pingora::http::ResponseHeader;

use crate::a2a::bridge::{Exchange, Stream};
use crate::a2a::event::split_blocks;
use crate::metrics::Metrics;
use crate::proxy::offload;
use crate::proxy::respond::internal_error;
use crate::proxy::translation::reject_untranslatable;
use crate::rejection::{Delivery, Reason, Rejection};

/// The translation of what the agent answers.
pub(in crate::proxy) struct ResponseTranslator {
    exchange: Exchange,
    /// The translation of a stream, once one began.
    stream: Option<Stream>,
    metrics: Arc<Metrics>,
    /// `limits.event_bytes`.
    event_bytes_max: usize,
}

impl ResponseTranslator {
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
    pub(in crate::proxy) const fn is_streaming(&self) -> bool {
        self.exchange.streams()
    }

    /// Translates a whole answer, and adjusts the head to it. True with it if it is an error.
    ///
    /// # Errors
    /// `agent_protocol_error`.
    pub(in crate::proxy) async fn translate_response(
        self,
        head: &mut ResponseHeader,
        body: Bytes,
    ) -> Result<(Bytes, bool), Rejection> {
        let status = head.status.as_u16();
        let exchange = self.exchange;
        let answer = offload::run_on_body(&body, move |body| {
            let answer = exchange.translate_answer(status, body)?;
            Ok(exchange.as_event(answer))
        })
        .await;
        let answer = answer
            .map_err(|failure| reject_untranslatable(&self.metrics, &failure, Delivery::Sent))?;
        self.metrics.bridge.count_left_out(&answer.left_out);
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_GATEWAY);
        head.set_status(status).map_err(internal_error)?;
        if let Some(content_type) = answer.content_type {
            head.insert_header(header::CONTENT_TYPE, content_type)
                .map_err(internal_error)?;
        }
        Ok((answer.body.into(), answer.is_error))
    }

    /// Translates whole events. Returns the reason that one of them has no translation with those before it.
    pub(in crate::proxy) fn translate_events(
        &mut self,
        events: &Bytes,
    ) -> (Bytes, Option<Rejection>) {
        let stream = self
            .stream
            .get_or_insert_with(|| self.exchange.start_stream());
        let mut written = Vec::with_capacity(events.len() + 256);
        let mut why = None;
        for block in split_blocks(events) {
            if block.len() > self.event_bytes_max {
                why = Some(too_long(self.event_bytes_max));
                break;
            }
            match stream.translate_block(block, &mut written) {
                Ok(told) => self.metrics.bridge.count_left_out(&told.left_out),
                Err(failure) => {
                    why = Some(reject_untranslatable(
                        &self.metrics,
                        &failure,
                        Delivery::Sent,
                    ));
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
    pub(in crate::proxy) fn translate_snapshot(
        &mut self,
        status: u16,
        body: &[u8],
    ) -> Result<(Bytes, bool), Rejection> {
        let stream = self
            .stream
            .get_or_insert_with(|| self.exchange.start_stream());
        let told = stream.translate_snapshot(status, body);
        let (event, told) =
            told.map_err(|failure| reject_untranslatable(&self.metrics, &failure, Delivery::Sent))?;
        self.metrics.bridge.count_left_out(&told.left_out);
        Ok((event.into(), !told.is_error))
    }
}

fn too_long(limit: usize) -> Rejection {
    let message = format!(
        "an event of the agent is longer than limits.event_bytes, {limit} bytes, the limit for events that are \
         translated between generations of A2A"
    );
    Rejection::new(Reason::ResponseTooLarge, message)
        .with_fact("limit", limit)
        .with_delivery(Delivery::Sent)
}
