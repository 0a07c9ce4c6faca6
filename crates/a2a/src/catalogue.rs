//! What catalogues list of an agent ([`Listing`]), and how well that answers a search (AI Catalog 0.9, ARD 0.91).

use serde_json::Value;

/// Maximum words of a search.
const WORDS_MAX: usize = 16;

/// Maximum entries of each list that is read from a card.
const LIST_MAX: usize = 256;

/// Maximum length of each text, in characters.
const TEXT_MAX: usize = 1024;

/// An agent, as its card and its workspace describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The name of its card, else of its workspace.
    pub name: String,
    /// The description of its card, else the role of its workspace.
    pub description: Option<String>,
    /// The ids of its skills.
    pub skills: Vec<String>,
    /// The tags of its skills, each once.
    pub tags: Vec<String>,
    /// Examples of requests.
    pub examples: Vec<String>,
    /// Media types that it takes.
    pub input_modes: Vec<String>,
    /// Media types that it gives.
    pub output_modes: Vec<String>,
    skill_texts: Vec<String>,
}

impl Listing {
    /// Reads a card, if there is one. `name` and `role` are those of the workspace.
    pub fn new(name: &str, role: Option<&str>, card: Option<&Value>) -> Self {
        let null = Value::Null;
        let card = card.unwrap_or(&null);
        let mut listing = Self {
            name: text(&card["name"]).unwrap_or_else(|| clip(name)),
            description: text(&card["description"]).or_else(|| role.map(clip)),
            ..Self::default()
        };
        extend(&mut listing.input_modes, &card["defaultInputModes"]);
        extend(&mut listing.output_modes, &card["defaultOutputModes"]);
        for skill in card["skills"]
            .as_array()
            .into_iter()
            .flatten()
            .take(LIST_MAX)
        {
            extend(&mut listing.tags, &skill["tags"]);
            extend(&mut listing.examples, &skill["examples"]);
            extend(&mut listing.input_modes, &skill["inputModes"]);
            extend(&mut listing.output_modes, &skill["outputModes"]);
            listing
                .skills
                .extend(text(&skill["id"]).or_else(|| text(skill)));
            let texts = [&skill["id"], &skill["name"], &skill["description"], skill];
            listing
                .skill_texts
                .extend(texts.into_iter().filter_map(text));
        }
        listing
    }

    /// Returns how well it answers a search for words, from 0 (not at all) to 100 (each word begins one of its name). A
    /// search without words is answered by all.
    pub fn score(&self, words: &[String]) -> u8 {
        let description = self.description.as_slice();
        let fields = [
            (5, std::slice::from_ref(&self.name)),
            (4, &self.tags),
            (4, &self.skill_texts),
            (3, description),
            (2, &self.examples),
        ];
        let best = |word: &String| {
            let found = fields.iter().filter(|(_, texts)| {
                let mut all = texts.iter().flat_map(|text| words_of(text));
                all.any(|one| one.starts_with(word.as_str()))
            });
            found.map(|(weight, _)| *weight).max().unwrap_or(0)
        };
        let sum: usize = words.iter().map(best).sum();
        let most = 5 * words.len();
        u8::try_from((100 * sum).checked_div(most).unwrap_or(100)).unwrap_or(100)
    }

    /// True if it has a skill of this id or tag.
    pub fn has_skill(&self, skill: &str) -> bool {
        let mut all = self.skills.iter().chain(&self.tags);
        all.any(|one| one.eq_ignore_ascii_case(skill))
    }

    /// True if it takes or gives this media type.
    pub fn has_mode(&self, mode: &str) -> bool {
        let mut all = self.input_modes.iter().chain(&self.output_modes);
        all.any(|one| one.eq_ignore_ascii_case(mode))
    }
}

/// Splits a search into words, in lower case.
pub fn split_search(text: &str) -> Vec<String> {
    words_of(text).take(WORDS_MAX).collect()
}

fn words_of(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(clip)
}

fn clip(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// Adds the texts of a list, each once.
fn extend(to: &mut Vec<String>, list: &Value) {
    for one in list.as_array().into_iter().flatten().filter_map(text) {
        if to.len() < LIST_MAX && !to.contains(&one) {
            to.push(one);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn weather() -> Listing {
        let card = json!({"name": "Weather", "description": "Forecasts for towns", "defaultInputModes": ["text/plain"],
            "skills": [{"id": "forecast", "name": "Forecast", "tags": ["rain", "sun", "rain"], "examples": ["will it snow?"],
                "outputModes": ["image/png"]}, "plain", 7]});
        Listing::new("w", Some("role"), Some(&card))
    }

    #[test]
    fn a_card_is_read_and_a_workspace_stands_in_for_it() {
        let listing = weather();
        assert_eq!(
            (listing.name.as_str(), listing.skills.len()),
            ("Weather", 2)
        );
        assert_eq!(listing.tags, ["rain", "sun"]);
        assert!(
            listing.has_skill("FORECAST") && listing.has_skill("sun") && !listing.has_skill("sno")
        );
        assert!(
            listing.has_mode("image/png")
                && listing.has_mode("text/plain")
                && !listing.has_mode("text/html")
        );
        let bare = Listing::new("w", Some("role"), None);
        assert_eq!(
            (bare.name.as_str(), bare.description.as_deref()),
            ("w", Some("role"))
        );
    }

    #[test]
    fn names_count_most_and_words_match_from_their_beginning() {
        let score = |search: &str| weather().score(&split_search(search));
        assert_eq!(score("WEATHER"), 100);
        assert_eq!(score("rain"), 80);
        assert_eq!(score("town"), 60);
        assert_eq!(score("snow"), 40);
        assert_eq!(score("weather snow"), 70);
        assert_eq!(score("ather"), 0);
        assert_eq!(score("nothing here"), 0);
    }
}
