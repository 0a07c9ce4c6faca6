//! Entries of the catalogue in the forms of AI Catalog 0.9 and ARD 0.91. Paths, version and names of both are here,
//! since they will change.

use serde_json::{Map, Value, json};

use access::workspace::Workspace;
use kernel::config::Config;
use kernel::ids::WorkspaceId;

/// `specVersion` of AI Catalog.
pub(super) const SPEC_VERSION: &str = "0.9";
/// Media type of a catalogue.
pub(super) const CATALOGUE_TYPE: &str = "application/ai-catalog+json";
/// Media type of an entry that is an agent.
pub(super) const AGENT_TYPE: &str = "application/a2a-agent-card+json";
/// Media type of the entry for the search routes.
pub(super) const REGISTRY_TYPE: &str = "application/ai-registry+json";

/// Characters of one text of a card, at most.
const TEXT_CHARS_MAX: usize = 2_000;
/// Texts in a list of an entry, at most.
const TEXTS_MAX: usize = 100;
/// Example queries in an entry: fewer are not sent.
const QUERIES: std::ops::RangeInclusive<usize> = 2..=5;

/// An agent of the catalogue.
pub(super) struct Entry {
    /// Name in all catalogues.
    pub(super) identifier: String,
    pub(super) display_name: String,
    pub(super) description: Option<String>,
    /// Tags of its skills.
    pub(super) tags: Vec<String>,
    /// Ids of its skills.
    pub(super) capabilities: Vec<String>,
    /// Names and descriptions of its skills.
    pub(super) skills: Vec<String>,
    /// Input and output modes.
    pub(super) modes: Vec<String>,
    /// Length of its card, of which the texts of the entry are parts.
    pub(super) card_bytes: usize,
    queries: Vec<String>,
    updated_at: Value,
    url: String,
}

impl Entry {
    /// Makes the entry of a workspace, by its registered card.
    pub(super) fn new(config: &Config, workspace: &Workspace) -> Self {
        let card = workspace.agent_card.as_deref();
        let card_bytes = card.map_or(0, |card| card.get().len());
        // A card that is no valid Unicode text has no members.
        let card = card.and_then(|card| serde_json::from_str::<Value>(card.get()).ok());
        let card = card.unwrap_or_default();
        let none = Vec::new();
        let skills = card["skills"].as_array().unwrap_or(&none);
        let each = |name: &str| -> Vec<String> {
            let texts = skills
                .iter()
                .flat_map(|skill| texts_of(&skill[name]))
                .collect();
            unique(texts)
        };
        let mut modes = Vec::new();
        for name in ["defaultInputModes", "defaultOutputModes"] {
            modes.extend(texts_of(&card[name]));
        }
        for name in ["inputModes", "outputModes"] {
            modes.extend(each(name));
        }
        let mut skill_texts = each("name");
        skill_texts.extend(each("description"));
        let name = card["name"].as_str().filter(|name| !name.trim().is_empty());
        let description = card["description"]
            .as_str()
            .filter(|text| !text.trim().is_empty());
        let mut queries = each("examples");
        queries.truncate(*QUERIES.end());
        Self {
            identifier: urn(config, &workspace.id),
            display_name: shorten(name.unwrap_or(&workspace.name)),
            description: description.map(shorten),
            tags: each("tags"),
            capabilities: each("id"),
            skills: skill_texts,
            modes: unique(modes),
            card_bytes,
            queries,
            updated_at: serde_json::to_value(workspace.updated_at).unwrap_or_default(),
            url: format!(
                "{}/.well-known/agent-card.json",
                config.base_of(&workspace.id)
            ),
        }
    }

    /// Returns the entry as it stands in a catalogue.
    pub(super) fn to_json(&self) -> Value {
        let mut entry = self.to_result();
        if QUERIES.contains(&self.queries.len()) {
            entry.insert("representativeQueries".into(), json!(self.queries));
        }
        Value::Object(entry)
    }

    /// Returns the entry without what only crawlers need.
    pub(super) fn to_result(&self) -> Map<String, Value> {
        let mut entry = Map::new();
        entry.insert("identifier".into(), self.identifier.clone().into());
        entry.insert("type".into(), AGENT_TYPE.into());
        entry.insert("url".into(), self.url.clone().into());
        entry.insert("displayName".into(), self.display_name.clone().into());
        if let Some(description) = &self.description {
            entry.insert("description".into(), description.clone().into());
        }
        for (name, texts) in [("tags", &self.tags), ("capabilities", &self.capabilities)] {
            if !texts.is_empty() {
                entry.insert(name.into(), json!(texts));
            }
        }
        entry.insert("updatedAt".into(), self.updated_at.clone());
        entry
    }
}

/// Returns the name of an agent.
fn urn(config: &Config, id: &WorkspaceId) -> String {
    format!("urn:air:{}:{id}", config.catalog_publisher())
}

/// Returns the workspace that a name means; `Ok(None)`: the name is of another publisher or form.
///
/// # Errors
/// It is no name of a catalogue.
pub(super) fn parse_urn(config: &Config, text: &str) -> Result<Option<WorkspaceId>, ()> {
    let rest = text.strip_prefix("urn:air:").ok_or(())?;
    let mut parts = rest.split(':');
    let publisher = parts.next().unwrap_or_default();
    let is_segment = |text: &str, more: &[char]| {
        !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || more.contains(&c))
    };
    let segments: Vec<_> = parts.collect();
    let is_good = is_segment(publisher, &['.', '-'])
        && !segments.is_empty()
        && segments
            .iter()
            .all(|segment| is_segment(segment, &['.', '_', '-']));
    if !is_good {
        return Err(());
    }
    match segments[..] {
        [id] if publisher == config.catalog_publisher() => Ok(WorkspaceId::parse(id).ok()),
        _ => Ok(None),
    }
}

/// Returns the entry of the search routes.
pub(super) fn registry(config: &Config) -> Value {
    json!({
        "identifier": format!("urn:air:{}:gateway:registry", config.catalog_publisher()),
        "type": REGISTRY_TYPE,
        "url": config.public_url(),
        "displayName": "Agents of this gateway",
        "description": "Search among the agents that the caller may call",
        "representativeQueries": ["find an agent by its skill", "which agents can I call"],
    })
}

/// Returns the entry of a nested catalogue: the agents from `start` until `next`.
pub(super) fn nested(config: &Config, start: &WorkspaceId, next: Option<&WorkspaceId>) -> Value {
    let before = next
        .map(|next| format!("&before={next}"))
        .unwrap_or_default();
    json!({
        "identifier": format!("urn:air:{}:catalogue:{start}", config.catalog_publisher()),
        "type": CATALOGUE_TYPE,
        "url": format!("{}/.well-known/ai-catalog.json?from={start}{before}", config.public_url()),
        "displayName": format!("Agents from {start}"),
    })
}

/// Returns a text, or the texts of an array.
fn texts_of(value: &Value) -> Vec<String> {
    let some = match value {
        Value::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    let texts = some.iter().filter_map(Value::as_str);
    texts
        .filter(|text| !text.trim().is_empty())
        .take(TEXTS_MAX)
        .map(shorten)
        .collect()
}

fn shorten(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

fn unique(texts: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    let fresh = texts.into_iter().filter(|text| seen.insert(text.clone()));
    fresh.take(TEXTS_MAX).collect()
}
