//! The control plane: the HTTP API for everything that a message requires to exist. It only maps HTTP; the other
//! modules decide and store.
//!
//! The data plane calls the router in process, with the request's [`RequestId`](kernel::ids::RequestId)
//! and [`ClientAddr`](access::identity::ClientAddr) as extensions, and its own rejections as
//! [`RejectedRequest`](kernel::rejection::RejectedRequest). `answer` formats every rejection, and `extract` reads every
//! credential.

pub mod admin;

mod activity;
mod answer;
mod body;
mod canvas;
mod caps;
mod catalogue;
mod change_facts;
mod delegations;
mod discovery;
mod dry_run;
mod duplicate_names;
mod erased_handler;
mod events;
mod extract;
mod grants;
mod lifecycle;
mod oauth;
mod operators;
mod page;
mod policy;
mod reach;
mod registry;
mod reply;
mod revocations;
mod route;
mod stops;
mod streams;
mod tokens;
mod turns;
mod usage;
mod watch;
mod well_known;
mod workspaces;
mod ws;

use std::sync::Arc;

use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};
#[cfg(test)]
use serde_json::json;

pub(crate) use self::answer::format_rejection;
use self::body::Bodies;
pub(crate) use self::erased_handler::ErasedHandler;
pub(crate) use self::route::declare_routes;
pub use self::route::{Offer, Route};
use assembly::gateway::Gateway;

declare_routes! {
    /// Create a workspace (operator; org token within its org).
    POST "/workspaces" => workspaces::create_workspace, Admin, records WorkspaceCreated, [DryRun, Console],
        says op("workspaces", "createWorkspace").by("adminToken orgToken").takes_named("NewWorkspace")
            .example("agent", json!({"value": {"name": "Planner", "role": "planner", "parent_id": "acme"}}))
            .example("unaware", json!({"summary": "An A2A server that knows nothing of this registry.",
                "value": {"name": "Echo", "url": "http://127.0.0.1:8000/", "liveness": "assumed"}}))
            .gives_named(201, "CreatedWorkspace", "Created.")
            .headers("Location")
            .refuses("404 409 410 502");
    /// List the workspaces that the credential reaches (every caller; operators all).
    GET "/workspaces" => reach::list_workspaces, Read,
        says op("workspaces", "listWorkspaces").lists_named("Workspace", "A page of them, in order of id.")
            .query("Cursor Limit Q StatusFilter").refuses("404 410");
    /// Read a workspace (itself, operators, callers that may reach it).
    GET "/workspaces/{id}" => workspaces::read_workspace, Read, [Console],
        says op("workspaces", "readWorkspace").gives_named(200, "Workspace", "The workspace.").refuses("404 410");
    /// Change or move a workspace, all of it or nothing (operator; org token within its org, moving nothing).
    PATCH "/workspaces/{id}" => lifecycle::change_workspace, Admin, records WorkspaceChanged, [DryRun, Console],
        says op("workspaces", "changeWorkspace").by("adminToken orgToken").takes_named("WorkspaceChange")
            .gives_named(200, "Workspace", "The workspace, as it is now.").refuses("404 409 410 502");
    /// Remove a workspace and end its tokens (operator; org token within its org).
    DELETE "/workspaces/{id}" => lifecycle::remove_workspace, Admin, records WorkspaceRemoved, [DryRun, Console],
        says op("workspaces", "removeWorkspace").by("adminToken orgToken")
            .gives_status("removed", "Removed. Children keep their parent_id.").refuses("404 410");
    /// Take a workspace out (operator; org token within its org).
    POST "/workspaces/{id}/pause" => lifecycle::pause_workspace, Operate, records WorkspacePaused, [DryRun, Console],
        says op("workspaces", "pauseWorkspace").by("adminToken orgToken")
            .takes_nothing().gives_named(200, "Workspace", "The workspace, paused.").refuses("404 409 410");
    /// Put a paused workspace back (operator; org token within its org).
    POST "/workspaces/{id}/resume" => lifecycle::resume_workspace, Operate, records WorkspaceResumed, [DryRun, Console],
        says op("workspaces", "resumeWorkspace").by("adminToken orgToken")
            .takes_nothing().gives_named(200, "Workspace", "The workspace, as it is now.").refuses("404 409 410");

    /// Hand a task to another workspace (itself). It is committed, and made once, whatever restarts.
    POST "/workspaces/{id}/delegate" => delegations::create_delegation, Admin, records DelegationCreated,
        says op("delegations", "delegate").by("workspaceToken").takes::<delegations::DelegateRequest>()
            .gives::<delegations::DelegateResponse>(200, "It was delegated before, under the same key.")
            .gives::<delegations::DelegateResponse>(202, "It is delegated.").refuses("404 409 410 508");
    /// What the workspace delegated (itself, operator), newest first.
    GET "/workspaces/{id}/delegations" => delegations::list_delegations, Read,
        says op("delegations", "listDelegations").by("workspaceToken adminToken")
            .lists::<delegations::DelegationResponse<'_>>("A page of them.").query("Cursor Limit");
    /// What became of a delegation (itself, operator).
    GET "/workspaces/{id}/delegations/{delegation_id}" => delegations::read_delegation, Read,
        says op("delegations", "readDelegation").by("workspaceToken adminToken")
            .gives::<delegations::DelegationResponse<'_>>(200, "The delegation.").refuses("404");

    /// Register an agent (the workspace with its own or its enrolment token, operator, org token).
    POST "/registry/register" => registry::register_agent, Admin, records WorkspaceRegistered,
        says op("registry", "register").by("workspaceToken enrolmentToken orgToken adminToken")
            .takes::<registry::RegisterRequest>().gives::<registry::RegisterResponse>(200, "Registered, and online.")
            .refuses("404 409 410 502");
    /// Say that the agent lives (the workspace, operator).
    POST "/registry/heartbeat" => registry::record_heartbeat, Admin,
        says op("registry", "heartbeat").by("workspaceToken adminToken").takes::<registry::HeartbeatRequest>()
            .gives::<registry::HeartbeatResponse>(200, "Heard.").refuses("404 409 410");
    /// Replace the card (the workspace, operator).
    POST "/registry/update-card" => registry::update_card, Admin, records CardUpdated,
        says op("registry", "updateCard").by("workspaceToken adminToken")
            .takes::<registry::UpdateCardRequest>().gives_status("updated", "Updated.").refuses("404 410");
    /// Say that the agent has gone (the workspace, operator).
    POST "/registry/deregister" => registry::deregister_agent, Operate, records WorkspaceDeregistered,
        says op("registry", "deregister").by("workspaceToken adminToken").takes::<registry::DeregisterRequest>()
            .gives_status("deregistered", "Offline until it registers again; its keys are dropped.")
            .refuses("404 410");
    /// Send an instance of the agent only the calls that are bound to it (the workspace, operator).
    POST "/registry/drain" => registry::drain_instance, Operate, records InstanceDraining,
        says op("registry", "drain").by("workspaceToken adminToken").takes::<registry::DrainRequest>()
            .gives_status("draining", "Until it deregisters, goes offline or registers again.").refuses("404 410");
    /// Where a workspace is (callers that may reach it).
    GET "/registry/discover/{id}" => discovery::discover_workspace, Read, records TokenIssued,
        says op("registry", "discover").gives::<discovery::DiscoveryResponse>(200, "Where it is.")
            .refuses("404 410 502");
    /// List the workspaces that this one may message (itself, operator).
    GET "/registry/{id}/peers" => reach::list_peers, Read,
        says op("registry", "listPeers").by("workspaceToken adminToken")
            .lists::<directory::Peer>("A page of them, in order of id.").query("Cursor Limit Q StatusFilter Skill Mode")
            .refuses("404 410");
    /// Whether one workspace may message another, and why (operator, either of the two).
    POST "/registry/check-access" => reach::check_access, Read,
        says op("registry", "checkAccess").by("workspaceToken adminToken").takes::<reach::CheckAccessRequest>()
            .gives::<reach::CheckAccessResponse>(200, "The answer. Whether the target is up is another question.");

    /// List grants (operator).
    GET "/grants" => grants::list_grants, Read, [Console],
        says op("grants", "listGrants").by("adminToken")
            .gives_page::<grants::GrantResponse>("grants", "A page of them, oldest first, expired ones too.")
            .query("Cursor Limit GrantCaller GrantTarget");
    /// Let one workspace message another (operator). In force on every replica within 1 s.
    POST "/grants" => grants::create_grant, Operate, records GrantCreated, [DryRun, Console],
        says op("grants", "createGrant").by("adminToken").takes::<grants::GrantRequest>()
            .gives::<grants::GrantResponse>(201, "The grant. A pair that has one keeps it, with the new note and end.")
            .refuses("404 410");
    /// Take a grant back (operator). In force on every replica within 1 s.
    DELETE "/grants/{grant_id}" => grants::remove_grant, Operate, records GrantRemoved, [DryRun, Console],
        says op("grants", "removeGrant").by("adminToken").gives_status("removed", "Taken back, now or before.")
            .refuses("404");

    /// List the stops in force (operator; org token those within its org).
    GET "/stops" => stops::list_stops, Read, [Console],
        says op("stops", "listStops").by("adminToken orgToken")
            .gives_page::<stops::StopResponse>("stops", "A page of them, oldest first.");
    /// Stop calls (operator; org token within its org). In force on every replica within 1 s.
    POST "/stops" => stops::create_stop, Operate, records StopCreated, [DryRun, Console],
        says op("stops", "createStop").by("adminToken orgToken")
            .takes::<stops::StopRequest>().gives::<stops::StopResponse>(201, "The stop.").refuses("404 409 410");
    /// Release a stop (operator; org token one that a token of its org made). In force on every replica within 1 s.
    DELETE "/stops/{stop_id}" => stops::release_stop, Operate, records StopReleased, [DryRun, Console],
        says op("stops", "releaseStop").by("adminToken orgToken").gives::<stops::ReleaseResponse>(200, "Released.")
            .refuses("404");
    /// List the revocations in force (operator; org token those of its org).
    GET "/revocations" => revocations::list_revocations, Read, [Console],
        says op("revocations", "listRevocations").by("adminToken orgToken")
            .gives_page::<revocations::RevocationResponse>("revocations", "A page of them, in order of id.");
    /// Revoke what a person, a session, a run or a credential began by now (operator; org token within its org).
    /// In force on every replica within 1 s.
    POST "/revocations" => revocations::create_revocation, Operate, records RevocationCreated, [DryRun, Console],
        says op("revocations", "createRevocation").by("adminToken orgToken")
            .takes::<revocations::RevocationRequest>()
            .example("person", json!({"value": {"root": {"iss": "https://login.example.com", "sub": "ada"},
                "reason": "left the company"}}))
            .gives::<revocations::RevocationResponse>(201, "The revocation. A later sign-in is new.")
            .refuses("409");
    /// List the caps with their use on all replicas (operator; an org token for its org).
    GET "/caps" => caps::list_caps, Read, [Console],
        says op("caps", "listCaps").by("adminToken orgToken")
            .gives::<caps::CapsPage>(200, "The caps of the configuration.").query("CapName CapSubject CapSubjects")
            .refuses("404");
    /// What calls took, by day, workspace and org (operator; an org token of its org).
    GET "/usage" => usage::list_usage, Read, [Console],
        says op("usage", "readUsage").by("adminToken orgToken")
            .gives::<usage::UsagePage>(200, "A page of sums, by org, workspace and day; as CSV all of them.")
            .content("text/csv", json!({"schema": {"type": "string"}}))
            .headers("Content-Disposition")
            .query("UsageFrom UsageTo UsageSide UsageBy UsagePer UsageOrg UsageWorkspace UsageFormat Limit Cursor");
    /// Workspaces, grants and stops as one document (operator).
    GET "/policy" => policy::export_policy, Read,
        says op("policy", "exportPolicy").by("adminToken")
            .gives_named(200, "Policy", "What operators set; no secrets, and nothing that agents report.")
            .refuses("409");
    /// Compare a document with the present state, and make all changes or none (operator).
    POST "/policy" => policy::apply_policy, Admin, records PolicyApplied, [OpenDryRun],
        says op("policy", "applyPolicy").by("adminToken").takes_named("PolicyToApply").query("Prune Force Replay")
            .gives_named(200, "PolicyDifference", "The difference, which was applied unless it is a dry run.")
            .content("application/x-ndjson", json!({"schema": {"type": "string"}}))
            .refuses("409");
    /// Prove the statements of a document; nothing is changed (operator; an org token for its org as it is).
    POST "/policy/prove" => policy::prove_policy, Read,
        says op("policy", "provePolicy").by("adminToken orgToken").takes_named("PolicyToProve").query("Prune")
            .gives_named(200, "PolicyProof", "Whether all statements hold, and those that do not, with counter-examples.")
            .refuses("409");
    /// The pairs that may call, by which rule, and groups of which all reach each other (operator).
    GET "/access/matrix" => policy::list_matrix, Read,
        says op("policy", "readAccessMatrix").by("adminToken").query("AccessFormat Limit Cursor")
            .gives_named(200, "AccessPage", "A page of rows, groups first; as CSV all of them.")
            .content("text/csv", json!({"schema": {"type": "string"}}))
            .refuses("409");

    /// List live tokens (itself, operator).
    GET "/workspaces/{id}/tokens" => tokens::list_tokens, Read, [Console],
        says op("tokens", "listWorkspaceTokens").by("workspaceToken adminToken")
            .gives_page::<tokens::WorkspaceToken>("tokens", "A page of them, oldest first.").refuses("404 410");
    /// Make a token (itself, operator). The body may be missing.
    ///
    /// A workspace whose credential ends makes no token that outlives it (`not_permitted`).
    POST "/workspaces/{id}/tokens" => tokens::issue_token, Admin, records TokenIssued, [DryRun, Console],
        says op("tokens", "issueWorkspaceToken").by("workspaceToken adminToken").may_take::<tokens::NewToken>()
            .gives_secret::<tokens::IssueResponse<'_>>("token", "The token, shown once.").refuses("404 409 410");
    /// Revoke a token (itself, operator). In force on every replica within 1 s.
    DELETE "/workspaces/{id}/tokens/{token_id}" => tokens::revoke_token, Admin, records TokenRevoked, [DryRun, Console],
        says op("tokens", "revokeWorkspaceToken").by("workspaceToken adminToken")
            .gives::<tokens::RevokeResponse>(200, "Revoked.").refuses("404 410");
    /// Make an enrolment token, good for one registration within 24 h (operator; org token within its org).
    /// Needs no body.
    POST "/workspaces/{id}/enrolment" => tokens::issue_enrolment, Admin, records TokenIssued, [DryRun],
        says op("tokens", "issueEnrolmentToken").by("adminToken orgToken")
            .gives_secret::<tokens::EnrolmentResponse<'_>>("enrolment_token", "The token, shown once.")
            .refuses("404 408 409 410 413");
    /// List live tokens of an org (operator).
    GET "/orgs/{org}/tokens" => tokens::list_org, Read, [Console],
        says op("tokens", "listOrgTokens").by("adminToken")
            .gives_page::<tokens::OrgToken>("tokens", "A page of them, oldest first.").refuses("404");
    /// Make an org token (operator). The body may be missing.
    POST "/orgs/{org}/tokens" => tokens::issue_org, Admin, records TokenIssued, [DryRun, Console],
        says op("tokens", "issueOrgToken").by("adminToken").may_take::<tokens::NewOrgToken>()
            .gives_secret::<tokens::IssueResponse<'_>>("token", "The token, shown once.").refuses("404 409 Gone");
    /// Revoke an org token (operator).
    DELETE "/orgs/{org}/tokens/{token_id}" => tokens::revoke_org, Admin, records TokenRevoked, [DryRun, Console],
        says op("tokens", "revokeOrgToken").by("adminToken").gives::<tokens::RevokeResponse>(200, "Revoked.")
            .refuses("404");
    /// The role and the name of the operator who asks.
    GET "/operators/me" => operators::show_self, Read, [Console],
        says op("tokens", "readOperator").by("adminToken").gives::<operators::OperatorResponse>(200, "The operator.");
    /// List live tokens of operators with a role, and sessions of people who signed in at the console (operator).
    GET "/operators/tokens" => operators::list_tokens, Read, [Console],
        says op("tokens", "listOperatorTokens").by("adminToken").gives_page::<operators::OperatorToken>("tokens",
                "A page of them, oldest first. Tokens of the configuration and that of the first start are in no list.");
    /// Make a token of an operator (operator with the role `admin`).
    POST "/operators/tokens" => operators::issue_token, Admin, records TokenIssued, [DryRun, Console],
        says op("tokens", "issueOperatorToken").by("adminToken").takes::<operators::NewOperatorToken>()
            .gives_secret::<tokens::IssueResponse<'_>>("token", "The token, shown once.").refuses("409");
    /// Revoke a token of an operator, or end the session of a person (operator with the role `admin`).
    DELETE "/operators/tokens/{token_id}" => operators::revoke_token, Admin, records TokenRevoked, [DryRun, Console],
        says op("tokens", "revokeOperatorToken").by("adminToken").gives::<tokens::RevokeResponse>(200, "Revoked.")
            .refuses("404");
    /// Make a canvas token for a browser user (operator; org token for its org).
    POST "/canvas/tokens" => tokens::issue_canvas, Admin, records TokenIssued, [DryRun],
        says op("tokens", "issueCanvasToken").by("adminToken orgToken").takes::<tokens::NewCanvasToken>()
            .example("user", json!({"value": {"user": "mia@example.com", "org": "acme", "ttl_seconds": 3600}}))
            .gives_secret::<tokens::CanvasResponse>("token", "The token, shown once.")
            .refuses("404 410");
    /// Revoke a canvas token (its holder, operator). In force on every replica within 1 s.
    DELETE "/canvas/tokens/{token_id}" => revocations::revoke_canvas, Admin, records TokenRevoked, [DryRun],
        says op("tokens", "revokeCanvasToken").by("canvasToken adminToken")
            .gives::<tokens::RevokeResponse>(200, "Revoked, with what it began. Also a token that has expired.")
            .refuses("404 409");
    /// The canvas without the slash at its end, where canvas.enabled.
    GET "/canvas" => canvas::redirect_to_page, Read,
        says op("pages", "canvasDoor").by("").answers(308, "To `/canvas/`.").contents("text/plain")
            .header("Location", json!({"required": true, "schema": {"const": "canvas/"}})).refuses("404");
    /// A page that talks with agents, where canvas.enabled.
    GET "/canvas/" => canvas::serve_file, Read,
        says op("pages", "canvas").by("").answers(304, "Not changed since the ETag of `If-None-Match`.")
            .answers(200, "The page. It may come from any link, and be in no frame.").contents("text/html")
            .headers("ETag Content-Security-Policy").refuses("404");
    /// A file of that page.
    GET "/canvas/{file}" => canvas::serve_file, Read,
        says op("pages", "canvasFile").by("").answers(304, "Not changed since the ETag of `If-None-Match`.")
            .answers(200, "The file, as it is in the program.")
            .contents("text/javascript text/css text/html image/svg+xml")
            .headers("ETag Content-Security-Policy").refuses("404");

    /// The same of the workspace that the credential proves.
    GET "/activity" => activity::list_own, Read,
        says op("inbox", "listOwnActivity").by("workspaceToken")
            .lists::<mailbox::inbox::Item>(tests::openapi::INBOX_PAGE).streams(tests::openapi::INBOX_EVENTS)
            .query(tests::openapi::INBOX_QUERY).refuses("Gone");
    /// Read an inbox, wait for an entry, or follow it as an event stream (itself, operator).
    GET "/workspaces/{id}/activity" => activity::list_activity, Read,
        says op("inbox", "listActivity").by("workspaceToken adminToken")
            .lists::<mailbox::inbox::Item>(tests::openapi::INBOX_PAGE).streams(tests::openapi::INBOX_EVENTS)
            .query(tests::openapi::INBOX_QUERY).refuses("404 Gone");
    /// Say that all entries up to one are dealt with (itself, operator).
    POST "/workspaces/{id}/activity/ack" => activity::acknowledge_entries, Admin,
        says op("inbox", "acknowledgeActivity").by("workspaceToken adminToken")
            .takes::<activity::AcknowledgeRequest>()
            .gives::<activity::AcknowledgeResponse>(200, "They are, and stay so.").refuses("404 Gone");
    /// Say what became of a message, or how far its task is (itself, operator).
    POST "/workspaces/{id}/activity/{activity_id}/reply" => reply::reply_to_entry, Admin, records MessageReplied,
        says op("inbox", "replyToActivity").by("workspaceToken adminToken").takes_named("Reply")
            .example("message", json!({"summary": "The answer. The task is completed.", "value": {
                "jsonrpc": "2.0", "id": 1, "result": {
                    "kind": "message", "role": "agent", "messageId": "a-1", "parts": [{"kind": "text", "text": "done"}],
                }}}))
            .example("status", json!({"summary": "How far it is.", "value": {"status": {"state": "working"}}}))
            .example("artifact", json!({"summary": "More of a result.", "value": {"append": true,
                "artifact": {"artifactId": "a", "parts": [{"kind": "text", "text": "one "}]}}}))
            .example("error", json!({"summary": "It has failed.",
                "value": {"error": {"code": -32603, "message": "out of paper"}}}))
            .gives::<reply::ReplyResponse>(200, "It is written down, and callers that wait for the task hear of it.")
            .refusal("NotFound", Some("task_not_found: no such entry in this inbox, or none that has a task"))
            .refusal("Conflict", Some("conflict: the task is over, or has as many updates as it may have"))
            .refusal("TooLarge", Some("body_too_large: over 1 MiB, or over `limits.response_bytes` together with all \
                replies to the task"));
    /// Tell the user of the workspace something (itself).
    POST "/workspaces/{id}/notify" => activity::notify_user, Admin, records MessageNotified,
        says op("inbox", "notifyUser").by("workspaceToken").takes::<mailbox::inbox::Notice>()
            .gives_status("sent", "It is in the inbox, and who watches hears `AGENT_MESSAGE`.");
    /// Take up a stream where it broke off.
    GET "/workspaces/{id}/streams/{stream}" => streams::resume_stream, Admin, records StreamResumed,
        says op("a2a", "resumeStream").answers(200, "What was missed, then what comes, until the stream is over.")
            .streams("The agent's events as they were sent, each with an `id`. Of the gateway's own: `gap` says how many \
                are missing, `end` why reading ended.")
            .header("X-A2A-Stream", json!({"$ref": "#/components/headers/Stream"}))
            .query("LastStreamEvent LastEventIdQuery").refuses("404 410");

    /// Watch what happens, over a WebSocket.
    ///
    /// RFC 6455 over HTTP/1.1. Each text message is an Event (below, schemas).
    GET "/ws" => ws::open_socket, Read,
        says op("events", "openSocket").by("workspaceToken canvasToken orgToken adminToken ticket")
            .gives_named(426, "Refusal", "upgrade_required")
            .headers("Sec-WebSocket-Version")
            .answers(101, "The socket is open.").query("LastEventIdOfSocket");
    /// Watch what happens, as an event stream that does not end by itself.
    GET "/events" => events::open_stream, Read,
        says op("events", "streamEvents").by("workspaceToken canvasToken orgToken adminToken ticket")
            .answers(200, "The stream. Each event's data is an Event (below, schemas), but for the last one, `end`.")
            .streams("Server-sent events: `id`, but for those that pass by, and `data`. Only `gap` and `end` have names.")
            .query("LastEvent LastEventIdQuery");
    /// Make a ticket that opens one socket or one event stream.
    POST "/ws/tickets" => events::issue_ticket, Read, records TokenIssued,
        says op("events", "issueTicket").gives::<events::TicketResponse<'_>>(201, "The ticket, for `?ticket=`.");

    /// The keys that verify the gateway's signed tokens.
    GET "/.well-known/jwks.json" => well_known::serve_jwks, Read,
        says op("trust", "jwks").by("").answers(304, "Not changed since the ETag of `If-None-Match`.")
            .gives_named(200, "Jwks", "A JWK Set (RFC 7517); may be kept for five minutes.")
            .headers("ETag");
    /// Issuer, keys, and what the signed tokens say.
    GET "/.well-known/a2a-gateway" => well_known::serve_discovery, Read,
        says op("trust", "trustDocument").by("").answers(304, "Not changed since the ETag of `If-None-Match`.")
            .gives_named(200, "TrustDocument", "May be kept for five minutes.")
            .headers("ETag");

    /// The agents that the caller may call, for other registries; without a credential those with public cards.
    GET "/.well-known/ard.json" => catalogue::serve_ard, Read,
        says op("catalogue", "readArd").optional().answers(304, "Not changed since the ETag of `If-None-Match`.")
            .answers(200, "A catalogue of AI Catalog 0.9 and ARD 0.91. Over 1,000 agents: links to parts of it.")
            .contents("application/json").headers("ETag")
            .query("PartFrom PartBefore");
    /// The same, as AI Catalog names it.
    GET "/.well-known/ai-catalog.json" => catalogue::serve_ai_catalog, Read,
        says op("catalogue", "readAiCatalog").optional().answers(304, "Not changed since the ETag of `If-None-Match`.")
            .answers(200, "A catalogue of AI Catalog 0.9 and ARD 0.91. Over 1,000 agents: links to parts of it.")
            .contents("application/ai-catalog+json").headers("ETag")
            .query("PartFrom PartBefore");
    /// Search among the agents that the caller may call (ARD 0.91).
    POST "/search" => catalogue::search_agents, Read,
        says op("catalogue", "searchAgents").optional().takes::<catalogue::SearchRequest>()
            .answers(200, "`results`, best first, each with `score` and `source`; `pageToken` if there are more.")
            .contents("application/json");
    /// List the agents that the caller may call (ARD 0.91).
    GET "/agents" => catalogue::list_agents, Read,
        says op("catalogue", "listAgents").optional()
            .answers(200, "`items`, `total`; `pageToken` if there are more.").contents("application/json")
            .query("AgentsFilter AgentsOrder PageSize PageToken");
    /// The entry of one agent (ARD 0.91). What the caller may not call is 404, like what does not exist.
    GET "/agents/{urn}" => catalogue::read_agent, Read,
        says op("catalogue", "readAgent").optional().answers(304, "Not changed since the ETag of `If-None-Match`.")
            .answers(200, "The entry.").contents("application/json").headers("ETag").refuses("404");
    /// Facets of ARD, which this gateway does not offer.
    POST "/explore" => catalogue::explore, Read,
        says op("catalogue", "exploreAgents").by("").gives_named(501, "Refusal", "Not offered.");
    /// What the gateway is as an OAuth authorization server (RFC 8414).
    GET "/.well-known/oauth-authorization-server" => oauth::metadata::serve_server, Read,
        says op("oauth", "authorizationServer").by("").answers(304, "Not changed since the ETag of `If-None-Match`.")
            .gives_named(200, "AuthorizationServer", "May be kept for five minutes.")
            .headers("ETag");
    /// What protects the A2A endpoint of a workspace (RFC 9728), existing or not.
    GET "/.well-known/oauth-protected-resource/workspaces/{id}/a2a" => oauth::metadata::serve_resource, Read,
        says op("oauth", "protectedResource").by("").answers(304, "Not changed since the ETag of `If-None-Match`.")
            .gives_named(200, "ProtectedResource", "May be kept for five minutes.")
            .headers("ETag").refuses("404");
    /// Exchange the chain token that was handed to a workspace (itself; RFC 8693).
    POST "/oauth/token" => oauth::token::exchange_token, Admin, records TokenIssued,
        says op("oauth", "exchangeToken").by("workspaceToken").takes_form(json!({
                "$ref": "#/components/schemas/TokenExchange"}))
            .gives_named(200, "ExchangedToken", "A call token for the target, or a narrower chain token.")
            .refuses_as_oauth();
    /// End what a person or a session at an identity provider began: back-channel logout (the provider).
    POST "/oauth/logout/{name}" => oauth::logout::accept_logout, Admin, records RevocationCreated,
        says op("oauth", "backChannelLogout").by("").takes_form(json!({"type": "object", "required": ["logout_token"],
                "properties": {"logout_token": {"type": "string"}}}))
            .answers(200, "Ended, on every replica within 1 s.").refuses_as_oauth();
}

/// Builds the control plane of `gateway`.
pub fn router(gateway: Arc<Gateway>) -> Router {
    routes()
        .fallback(answer::unknown_path)
        .method_not_allowed_fallback(answer::wrong_method)
        .layer(from_fn_with_state(Arc::clone(&gateway), answer::wrap_route))
        .layer(Extension(Bodies::default()))
        .with_state(gateway)
}

#[cfg(test)]
mod tests;
