//! The extended card, which is the result of a call: it tells no more of where the agent listens than
//! the other.

use bytes::Bytes;
use http::header;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use tokio::time::Instant;

use super::cache::{base, signed, unreadable};
use super::fetch::Question;
use crate::a2a::card::{Card, Facts, Reply, Unreadable};
use crate::directory::{AGENT_CARD_BYTES_MAX, CardSource};
use crate::proxy::Proxy;
use crate::proxy::ended::{Ended, internal, left, patiently, shutting_down};
use crate::proxy::exchange::Exchange;
use crate::proxy::fields::response_head;
use crate::proxy::relay::{Forward, refuse_redirect};
use crate::rejection::{Reason, Rejection};

impl Proxy {
    /// Forwards a call for the extended card, and answers with the card as the gateway serves it.
    pub(in crate::proxy) async fn extended_card(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        forward: Forward,
        source: &CardSource,
        completed: Option<String>,
    ) -> Result<Ended, Ended> {
        let Forward {
            peer,
            call,
            share,
            clocks,
        } = forward;
        let question = Question {
            peer: &peer,
            call,
            deadline: clocks.total.min(Instant::now() + clocks.head),
            bytes_max: AGENT_CARD_BYTES_MAX,
            idle: exchange.config.upstream.idle,
        };
        let mut cut = self.relay.drain.watch();
        let (head, body) = tokio::select! {
            biased;
            answered = question.ask(&self.relay) => answered?,
            () = left(session) => return Err(Ended::CallerLeft),
            () = cut.requested() => return Err(shutting_down("unknown").into()),
        };
        drop((question, share));
        exchange.head = Some(exchange.started.elapsed());
        refuse_redirect(&head)?;
        let body = self.served(exchange, source, &head, body)?;
        let request = &session.req_header().headers;
        let origins = self.origins.get();
        let head = response_head(&head, request, &origins, exchange, completed);
        let mut head = head.map_err(internal)?;
        // What an agent says of its bytes is not true of these.
        for name in [
            "etag",
            "last-modified",
            "content-md5",
            "digest",
            "content-digest",
        ] {
            head.remove_header(name);
        }
        let length = head.insert_header(header::CONTENT_LENGTH, body.len());
        length.map_err(internal)?;
        exchange.status = head.status.as_u16();
        exchange.response_bytes = body.len() as u64;
        let write = patiently(session.get_write_timeout(), async {
            session.write_response_header(Box::new(head)).await?;
            session.write_response_body(body, true).await
        });
        write.await.map_err(|_| Ended::CallerLeft)?;
        Ok(Ended::Answered)
    }

    /// The agent's answer with the card in it as callers may see it. Errors are the agent's own.
    fn served(
        &self,
        exchange: &Exchange,
        source: &CardSource,
        head: &ResponseHeader,
        body: Bytes,
    ) -> Result<Bytes, Rejection> {
        let config = &exchange.config;
        let reply = Reply::read(&body);
        let Some(result) = reply.as_ref().and_then(Reply::result) else {
            let error = reply.is_some_and(|reply| reply.is_error());
            if error || !head.status.is_success() {
                return Ok(body);
            }
            let message = "the agent's answer holds no card";
            return Err(
                Rejection::new(Reason::AgentProtocolError, message).fact("delivered", "true")
            );
        };
        let card = match Card::fetched(result.as_bytes()) {
            Ok(card) => card,
            // An answer like any other.
            Err(Unreadable::NoCard) => return Ok(body),
            Err(broken) => return Err(unreadable(broken)),
        };
        let served = card.served(&Facts {
            base: &base(config, &source.id),
            name: &source.name,
            role: source.role.as_deref(),
            hidden: &source.hidden,
            bearer: config.card.declare_security,
            push_notifications: source.push_notifications,
        });
        let mut served = served.map_err(unreadable)?;
        if config.card.sign {
            served = signed(&self.gateway, served, config);
        }
        let whole = reply.map_or(served.clone(), |reply| reply.with_result(served));
        Ok(whole.into())
    }
}
