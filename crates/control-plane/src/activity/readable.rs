//! Entries of an inbox as a reader may see them: without content for operators below `admin`, and without messages that
//! wait for the release of a stop.

use std::collections::HashMap;
use std::sync::Arc;

use access::hierarchy::Lineage;
use access::identity::Proof;
use assembly::gateway::Gateway;
use directory::stops::End;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use mailbox::inbox::{ActivityType, Filter, Item, Page, Start};

/// Returns a page as its reader may see it. True if messages wait for the release of a stop.
///
/// # Errors
/// `store_unavailable`.
pub(super) async fn load_page(
    gateway: &Gateway,
    (reader, id): (&Proof, &WorkspaceId),
    (filter, start, limit): (Filter, Start, u32),
) -> Result<(Page, bool), Rejection> {
    let mut page = gateway
        .delivery
        .inbox
        .read_page(id, filter, start, limit)
        .await?;
    if reader.sees_no_content() {
        page.items.iter_mut().for_each(Item::withhold_content);
    }
    let held = hold_back(gateway, id, &mut page).await?;
    if reader.principal.workspace() == Some(id) {
        sign_chains(gateway, id, &mut page).await?;
    }
    Ok((page, held))
}

/// Puts the chain tokens of calls into their entries, for the workspace itself.
async fn sign_chains(
    gateway: &Gateway,
    id: &WorkspaceId,
    page: &mut Page,
) -> Result<(), Rejection> {
    for item in &mut page.items {
        let Some(stored) = item.chain.take() else {
            continue;
        };
        match gateway.sign_stored_chain(&stored, id).await {
            Ok(chain) => item.on_behalf_of = Some(chain.token().to_owned()),
            Err(why) => match why.reason {
                Reason::StoreUnavailable | Reason::Internal => return Err(why),
                reason => item.on_behalf_of_refused = Some(reason.as_str()),
            },
        }
    }
    Ok(())
}

/// Takes messages that a stop covers, and all entries after the first of them, out of a page: a reader that went on
/// after a later entry would miss them. Acknowledged ones have been read, and stay. True if there are some.
///
/// # Errors
/// `store_unavailable`.
async fn hold_back(
    gateway: &Gateway,
    id: &WorkspaceId,
    page: &mut Page,
) -> Result<bool, Rejection> {
    if gateway.stops.is_idle() {
        return Ok(false);
    }
    gateway.stops.require_known()?;
    let acknowledged = gateway.delivery.inbox.read_acknowledged(id).await?;
    let to = gateway.hierarchy.load_lineage(id).await?;
    let mut places: HashMap<WorkspaceId, Option<Arc<Lineage>>> = HashMap::new();
    let mut first: Option<i64> = None;
    for item in &page.items {
        let is_message = item.activity_type == ActivityType::A2aReceive.as_str();
        if !is_message || item.seq <= acknowledged {
            continue;
        }
        let source = item.source_id.as_deref();
        let source = source.and_then(|source| WorkspaceId::parse(source).ok());
        if let Some(source) = &source
            && !places.contains_key(source)
        {
            let place = gateway.hierarchy.load_lineage(source).await?;
            places.insert(source.clone(), place);
        }
        let caller = match &source {
            Some(source) => {
                End::at_workspace(source, places.get(source).and_then(Option::as_deref))
            }
            None => End::of_org(None),
        };
        if gateway
            .stops
            .holds_back(&[caller, End::at_workspace(id, to.as_deref())])
        {
            first = first.into_iter().chain([item.seq]).min();
        }
    }
    let Some(first) = first else {
        return Ok(false);
    };
    page.items.retain(|item| item.seq < first);
    page.more = false;
    page.last = page.last.min(first - 1);
    Ok(true)
}
