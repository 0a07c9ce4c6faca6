//! Advice on a rejection, from the explanation's facts about caller and target.

use serde_json::Value;

/// Returns advice for the body's reason; `None` if the rejection's message is enough.
pub(super) fn give_advice(body: &Value) -> Option<String> {
    if let Some(waits) = advise_to_wait(body) {
        return Some(waits);
    }
    let advice = match body["reason"].as_str().unwrap_or_default() {
        "unauthenticated" => return Some(advise_without_credential(body)),
        "not_permitted" => return Some(advise_if_not_permitted(body)),
        "workspace_offline" => return Some(advise_if_offline(body)),
        "stopped" => {
            let stop = find_fact(body, "stop")["stop"].as_str().unwrap_or("{id}");
            return Some(format!(
                "an operator stopped it: once the cause is over, `a2a-gateway release {stop}`."
            ));
        }
        "invalid_workspace_id" => "correct the id of the target.",
        "cap_reached" => {
            "wait for its window; or raise the `limit` of the cap: `a2a-gateway caps` shows what it counts."
        }
        "rate_limited" => {
            "the caller waits; or raise rate.caller_per_second and rate.caller_burst."
        }
        "role_required" => {
            "an operator with the role that the message names does it: `a2a-gateway token operator --role`."
        }
        "workspace_not_found" => {
            "correct the id of the target (`a2a-gateway workspace list`), or create it (`a2a-gateway workspace create`)."
        }
        "workspace_removed" => REMOVED,
        "workspace_restarting" => {
            "wait until its agent registers; or, if it never will, `a2a-gateway workspace set ID liveness=assumed`."
        }
        "agent_busy" => {
            "an open breaker lets one call try after its time, and when the agent registers or sends a heartbeat: mend \
             what its cause says; a learned limit grows with the calls that the agent answers; else raise \
             max_concurrent of the workspace (limits.target_concurrency). A full inbox is emptied by its agent."
        }
        "address_forbidden" => {
            "register another URL; or open loopback and private ranges with address.allow, one agent with \
             trusted_agents."
        }
        "agent_unreachable" => {
            "the agent's name has no address: correct its URL, or the DNS that the gateway asks."
        }
        "agent_protocol_error" => "look at the agent's card: it must name a JSON-RPC interface.",
        "store_unavailable" => {
            "the step says which store does not answer: /readyz and the log say more."
        }
        "overloaded" => {
            "this replica has as many exchanges as it takes (server.max_exchanges): add replicas."
        }
        "shutting_down" => "ask another replica: this one is about to end.",
        _ => return None,
    };
    Some(advice.to_owned())
}

/// True if a call would not be refused, but wait for its target to wake.
pub(super) fn would_wait(body: &Value) -> bool {
    advise_to_wait(body).is_some()
}

/// Advice for a target that sleeps and has a waker: a call would wait for it.
fn advise_to_wait(body: &Value) -> Option<String> {
    let of = |name| find_fact(body, name)["wakes"]["max_wait_ms"].as_u64();
    let seconds = of("state").or_else(|| of("liveness"))? / 1000;
    Some(format!(
        "a call wakes the target, and waits for it for up to {seconds} s."
    ))
}

const REMOVED: &str =
    "create another workspace, or this one again with `recreate` (a2a-gateway workspace create).";

/// Returns the fact of a step; `null` if the explanation has no such step.
pub(super) fn find_fact<'a>(body: &'a Value, name: &str) -> &'a Value {
    let mut steps = body["steps"].as_array().into_iter().flatten();
    let step = steps.find(|step| step["step"] == name);
    step.map_or(&Value::Null, |step| &step["fact"])
}

fn advise_without_credential(body: &Value) -> String {
    let principal = &find_fact(body, "caller")["principal"];
    if let Some(org) = principal["org"].as_str() {
        return format!(
            "the org has no live token: make one (`a2a-gateway token create --org {org}`)."
        );
    }
    if principal["kind"] == "operator" {
        return "there is no operator's token: set A2A_GATEWAY_ADMIN_TOKEN, or auth.admin_token_sha256."
            .to_owned();
    }
    let caller = body["caller"].as_str().unwrap_or_default();
    let place = find_fact(body, "caller_place");
    if place["exists"] == false {
        return format!(
            "there is no workspace {caller}: correct the id of the caller, or create it (`a2a-gateway workspace create`)."
        );
    }
    if place["removed"] == true {
        return format!("{caller} was removed, and its tokens with it: {REMOVED}");
    }
    format!(
        "the caller has no live token: make one (`a2a-gateway token create {caller}`), or let it register."
    )
}

fn advise_if_not_permitted(body: &Value) -> String {
    let word = |member: &str| body[member].as_str().unwrap_or_default();
    let (caller, target) = (word("caller"), word("target"));
    let (from, to) = (
        find_fact(body, "caller_place"),
        find_fact(body, "target_place"),
    );
    for (name, place) in [(caller, from), (target, to)] {
        if place["exists"] == false {
            return format!(
                "there is no workspace {name}: correct the id, or create it (`a2a-gateway workspace create`)."
            );
        }
        if place["removed"] == true {
            return format!("{name} was removed: {REMOVED}");
        }
        if place["cyclic"] == true {
            return format!(
                "the line above {name} leads back into itself: move it to a parent that is not below it \
                 (`a2a-gateway workspace move {name}`)."
            );
        }
    }
    let asked = find_fact(body, "caller");
    let principal = &asked["principal"];
    let org = to["org"].as_str();
    let its_org = org.map_or("of no org".to_owned(), |org| format!("of the org {org}"));
    match principal["kind"].as_str() {
        Some("canvas") if principal["workspaces"].is_array() => format!(
            "the user's token lists its workspaces: issue one that lists {target}, too (`a2a-gateway token canvas`)."
        ),
        Some("canvas") if principal["org"].is_null() && asked["credentials"]["known"] == 0 => {
            format!(
                "no token of the user was used here, so one without claims was taken: say with --org or --workspace \
             what theirs says; {target} is {its_org}."
            )
        }
        Some("canvas") => format!(
            "{target} is {its_org}: issue a token that says so (`a2a-gateway token canvas`), or one that lists it."
        ),
        Some("org") => match org {
            Some(org) => format!(
                "{target} is {its_org}: ask with a token of that org (`a2a-gateway token create --org {org}`)."
            ),
            None => format!(
                "{target} is {its_org}: no org's token is good for it; put it into one (`a2a-gateway workspace set {target} org=NAME`)."
            ),
        },
        _ if from["paused"] == true => {
            format!("resume {caller} (`a2a-gateway workspace resume {caller}`).")
        }
        _ if in_line(caller, to) || in_line(target, from) => format!(
            "the two are in one line, more than one step apart: set access.lineage to \"any\", or grant it \
             (`a2a-gateway grant create {caller} {target}`)."
        ),
        _ => {
            let orgs = [from, to].map(|place| place["org"].as_str());
            let apart = match orgs {
                [Some(one), Some(other)] if one != other => format!(
                    "{caller} is of the org {one}, {target} of {other}, and no grant joins them"
                ),
                _ => "neither is the other's parent or sibling, and no grant joins them".to_owned(),
            };
            format!(
                "{apart}: `a2a-gateway grant create {caller} {target}` would allow it; so would moving one of the two \
                 (`a2a-gateway workspace move`)."
            )
        }
    }
}

/// True if `id` is an ancestor of the workspace of `place`.
fn in_line(id: &str, place: &Value) -> bool {
    let mut ancestors = place["ancestors"].as_array().into_iter().flatten();
    ancestors.any(|above| above == id)
}

fn advise_if_offline(body: &Value) -> String {
    let target = body["target"].as_str().unwrap_or_default();
    let state = find_fact(body, "state");
    let resume = format!("`a2a-gateway workspace resume {target}`");
    match (state["status"].as_str(), state["liveness"].as_str()) {
        (Some("paused"), _) => format!("resume it ({resume})."),
        (Some("failed"), _) => {
            format!("see why it did not start, and start its agent; then resume it ({resume}).")
        }
        (Some("offline"), Some("assumed")) if state["probed"] == true => {
            format!("see why its agent does not answer the probe: it comes back when it does, or resume it ({resume}).")
        }
        (Some("offline"), Some("assumed")) => {
            format!("see that its agent runs, and resume it ({resume}).")
        }
        _ if find_fact(body, "url").is_object() => {
            "let its agent register with a URL (POST /registry/register), or give it one (`a2a-gateway workspace set`)."
                .to_owned()
        }
        _ => {
            "start its agent: it comes back when it registers (POST /registry/register) or, where it has a URL still, \
             sends heartbeats; one that knows nothing of this registry needs liveness \"assumed\" (`a2a-gateway workspace set`)."
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(reason: &str, steps: &[(&str, Value)]) -> String {
        let steps: Vec<_> = steps
            .iter()
            .map(|(step, fact)| json!({"step": step, "fact": fact}))
            .collect();
        let body = json!({"caller": "a", "target": "b", "reason": reason, "steps": steps});
        give_advice(&body).unwrap()
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table")]
    fn each_refusal_has_the_advice_that_helps_against_it() {
        let here = || json!({"exists": true, "removed": false, "cyclic": false, "org": "acme"});
        let nowhere = || json!({"exists": false});
        let gone = || json!({"exists": true, "removed": true});
        let kind = |kind: &str| json!({"principal": {"kind": kind}, "credentials": {"known": 0}});
        let org = || json!({"principal": {"kind": "org", "org": "other"}});
        let listed = || json!({"principal": {"kind": "canvas", "workspaces": ["x"]}});
        for (reason, steps, helps) in [
            (
                "unauthenticated",
                vec![("caller", org())],
                "token create --org other",
            ),
            (
                "unauthenticated",
                vec![("caller", kind("operator"))],
                "A2A_GATEWAY_ADMIN_TOKEN",
            ),
            (
                "unauthenticated",
                vec![("caller_place", nowhere()), ("caller", kind("workspace"))],
                "no workspace a:",
            ),
            (
                "unauthenticated",
                vec![("caller_place", gone()), ("caller", kind("workspace"))],
                "a was removed",
            ),
            (
                "unauthenticated",
                vec![("caller_place", here()), ("caller", kind("workspace"))],
                "token create a",
            ),
            (
                "not_permitted",
                vec![("caller_place", nowhere()), ("target_place", here())],
                "no workspace a:",
            ),
            (
                "not_permitted",
                vec![("caller_place", here()), ("target_place", nowhere())],
                "no workspace b:",
            ),
            (
                "not_permitted",
                vec![("caller_place", here()), ("target_place", gone())],
                "b was removed",
            ),
            (
                "not_permitted",
                vec![("caller_place", here()), ("target_place", here())],
                "a2a-gateway grant create",
            ),
            (
                "not_permitted",
                vec![("caller", kind("canvas")), ("target_place", here())],
                "--org",
            ),
            ("not_permitted", vec![("caller", listed())], "lists b"),
            (
                "not_permitted",
                vec![("caller", org()), ("target_place", here())],
                "token create --org acme",
            ),
            (
                "workspace_offline",
                vec![("state", json!({"status": "paused"}))],
                "resume it",
            ),
            (
                "workspace_offline",
                vec![(
                    "state",
                    json!({"status": "offline", "liveness": "assumed", "probed": true}),
                )],
                "answer the probe",
            ),
            (
                "workspace_offline",
                vec![(
                    "state",
                    json!({"status": "offline", "liveness": "heartbeat"}),
                )],
                "start its agent",
            ),
            (
                "workspace_offline",
                vec![
                    ("state", json!({"status": "online"})),
                    ("liveness", json!({})),
                ],
                "start its agent",
            ),
            (
                "workspace_offline",
                vec![
                    ("state", json!({"status": "online"})),
                    ("url", json!({"url": null})),
                ],
                "with a URL",
            ),
        ] {
            let told = told(reason, &steps);
            assert!(told.contains(helps), "{steps:?}: {told}");
        }
    }
}
