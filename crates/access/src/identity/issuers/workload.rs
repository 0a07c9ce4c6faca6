//! The workspace that a platform's token names, by the rules of its issuer: a Kubernetes service account token, a
//! SPIFFE JWT-SVID.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::identity::refusal::Refusal;
use kernel::config::{Part, WorkspaceIssuer};
use kernel::ids::WorkspaceId;

/// The claims of a verified token. Times are seconds since 1970.
#[derive(Deserialize)]
pub(super) struct Claims {
    pub(super) exp: f64,
    pub(super) iat: Option<f64>,
    #[serde(flatten)]
    named: Map<String, Value>,
}

impl Claims {
    /// Returns a claim that is text, by its name or by the path to it.
    fn find_text(&self, name: &str) -> Option<&str> {
        let Some(path) = name.strip_prefix('/') else {
            return self.named.get(name)?.as_str();
        };
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        // As in a JSON pointer: `~1` stands for `/`, `~0` for `~`.
        let first = first.replace("~1", "/").replace("~0", "~");
        let claim = self.named.get(&first)?;
        if rest.is_empty() {
            return claim.as_str();
        }
        claim.pointer(&format!("/{rest}"))?.as_str()
    }
}

/// Returns the workspace that verified claims name, and the org that it must be in.
///
/// # Errors
/// [`Refusal::Unmatched`] if a claim is missing or does not match; [`Refusal::NoId`] if the parts give no workspace id.
pub(super) fn identify_workload(
    rules: &WorkspaceIssuer,
    claims: &Claims,
) -> Result<(WorkspaceId, Option<String>), Refusal> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    for (name, pattern) in &rules.claims {
        let value = claims.find_text(name).ok_or(Refusal::Unmatched)?;
        parts.extend(pattern.read(value).ok_or(Refusal::Unmatched)?);
    }
    let id = rules.workspace.fill(&parts).ok_or(Refusal::NoId)?;
    let id = WorkspaceId::parse(&id).map_err(|_| Refusal::NoId)?;
    let org = rules
        .org
        .as_ref()
        .map(|org| org.fill(&parts).ok_or(Refusal::NoId));
    Ok((id, org.transpose()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(claims: Value, workspace: &str, org: Option<&str>) -> WorkspaceIssuer {
        let rules = json!({"issuer": "https://a.test", "jwks_url": "https://a.test", "audience": "gw",
            "claims": claims, "workspace": workspace, "org": org});
        serde_json::from_value(rules).unwrap()
    }

    fn named(rules: &WorkspaceIssuer, claims: Value) -> Result<(String, Option<String>), Refusal> {
        let mut claims = claims;
        claims["exp"] = 1.into();
        let (id, org) = identify_workload(rules, &serde_json::from_value(claims).unwrap())?;
        Ok((id.to_string(), org))
    }

    #[test]
    fn kubernetes_names_a_workspace() {
        let subject = json!({"sub": "system:serviceaccount:{namespace}:{name}"});
        let both = rules(subject.clone(), "{namespace}.{name}", None);
        let in_org = rules(subject, "{name}", Some("{namespace}"));
        let pod = rules(
            json!({"/kubernetes.io/namespace": "agents", "/kubernetes.io/pod/name": "{pod}"}),
            "{pod}",
            None,
        );
        let claims = |namespace: &str, name: &str| {
            json!({"sub": format!("system:serviceaccount:{namespace}:{name}"), "kubernetes.io": {
                "namespace": namespace, "pod": {"name": "dev-0"}, "serviceaccount": {"name": name}}})
        };
        let good = claims("agents", "dev");
        let dev = |id: &str, org: Option<&str>| Ok((id.to_owned(), org.map(str::to_owned)));
        assert_eq!(named(&both, good.clone()), dev("agents.dev", None));
        assert_eq!(named(&in_org, good.clone()), dev("dev", Some("agents")));
        assert_eq!(named(&pod, good), dev("dev-0", None));
        assert_eq!(named(&pod, claims("other", "dev")), Err(Refusal::Unmatched));
        let long = claims("agents", &"x".repeat(130));
        assert_eq!(named(&in_org, long), Err(Refusal::NoId));
        let dotted = claims("a.b", "c");
        assert_eq!(named(&both, dotted), Err(Refusal::NoId));
    }

    #[test]
    fn spiffe_names_a_workspace_of_its_trust_domain() {
        let rules = rules(
            json!({"sub": "spiffe://a.test/ns/agents/sa/{id}"}),
            "{id}",
            None,
        );
        let good = json!({"sub": "spiffe://a.test/ns/agents/sa/dev"});
        assert_eq!(named(&rules, good), Ok(("dev".to_owned(), None)));
        for claims in [
            json!({"sub": "spiffe://b.test/ns/agents/sa/dev"}),
            json!({"sub": "spiffe://a.test/ns/other/sa/dev"}),
            json!({"sub": "spiffe://a.test/ns/agents/sa/dev/x"}),
            json!({"sub": "spiffe://a.test/ns/agents/sa/system:x"}),
            json!({"sub": ["spiffe://a.test/ns/agents/sa/dev"]}),
            json!({"sub": 7}),
            json!({}),
        ] {
            assert_eq!(
                named(&rules, claims.clone()),
                Err(Refusal::Unmatched),
                "{claims}"
            );
        }
    }

    #[test]
    fn claims_are_found_by_name_or_by_path() {
        let claims = json!({"exp": 1, "https://a.test/id": "one", "a": {"b/c": {"d": "two"}}, "e": ["three"]});
        let claims: Claims = serde_json::from_value(claims).unwrap();
        for (name, found) in [
            ("https://a.test/id", Some("one")),
            ("/https:~1~1a.test~1id", Some("one")),
            ("/a/b~1c/d", Some("two")),
            ("/e/0", Some("three")),
            ("/a/b", None),
            ("/a", None),
            ("a", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(claims.find_text(name), found, "{name}");
        }
    }
}
