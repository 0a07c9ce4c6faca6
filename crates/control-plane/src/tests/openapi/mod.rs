//! The description of the HTTP API, `docs/openapi.yaml`: from the declarations of the routes, and the types of their
//! bodies. `base.yaml` has what neither says: the routes of the data plane, and the schemas of bodies without a type.

mod schema;
mod write;

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use self::schema::Schemas;
use self::write::to_yaml;
use crate::{Offer, Route};

/// The refusals by their status, and the name of their response in `base.yaml`.
const REFUSALS: [(&str, &str); 16] = [
    ("400", "BadRequest"),
    ("401", "Unauthenticated"),
    ("403", "Forbidden"),
    ("404", "NotFound"),
    ("408", "RequestTimeout"),
    ("409", "Conflict"),
    ("410", "Removed"),
    ("410", "Gone"),
    ("413", "TooLarge"),
    ("415", "UnsupportedMediaType"),
    ("421", "Misdirected"),
    ("429", "RateLimited"),
    ("500", "Internal"),
    ("502", "BadGateway"),
    ("503", "Unavailable"),
    ("508", "LoopDetected"),
];

pub(crate) const INBOX_PAGE: &str = "A page, the newest first; with `since_id` the oldest first. Or a stream that does not end by itself.";
pub(crate) const INBOX_EVENTS: &str = "Server-sent events: `id`, `event: activity` and an Activity as `data`. The last one is named `end` or `gap`.";
pub(crate) const INBOX_QUERY: &str =
    "Cursor Limit SinceId ActivityType ActivitySource Wait LastEntry";

/// What a declaration says of an operation for its callers.
pub(crate) struct Operation {
    tag: &'static str,
    id: &'static str,
    /// Kinds of credentials; `None`: those that most routes take.
    credentials: Option<&'static str>,
    is_optional: bool,
    /// Names of parameters in `base.yaml`.
    query: &'static str,
    takes: Option<Value>,
    reads_body: bool,
    answers: Map<String, Value>,
    /// The status of the last answer.
    last: String,
    refusals: Map<String, Value>,
    never: &'static str,
    schemas: Schemas,
}

/// Begins the description of an operation, by the tag and the id under which clients know it.
pub(crate) fn op(tag: &'static str, id: &'static str) -> Operation {
    Operation {
        tag,
        id,
        credentials: None,
        is_optional: false,
        query: "",
        takes: None,
        reads_body: false,
        answers: Map::new(),
        last: String::new(),
        refusals: Map::new(),
        never: "",
        schemas: Schemas::default(),
    }
}

impl Operation {
    /// Takes these kinds of credentials; `""`: it needs none.
    pub(crate) fn by(mut self, credentials: &'static str) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Takes these parameters of `base.yaml`.
    pub(crate) fn query(mut self, names: &'static str) -> Self {
        self.query = names;
        self
    }

    /// Takes any credential, or none.
    pub(crate) fn optional(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// Needs a body.
    pub(crate) fn takes<T: ToSchema>(mut self) -> Self {
        let schema = self.schemas.add::<T>(false);
        self.takes_schema(schema, true)
    }

    /// Takes a body, which may be missing.
    pub(crate) fn may_take<T: ToSchema>(mut self) -> Self {
        let schema = self.schemas.add::<T>(false);
        self.takes_schema(schema, false)
    }

    /// Needs a body with a schema of `base.yaml`.
    pub(crate) fn takes_named(self, name: &str) -> Self {
        self.takes_schema(named(name), true)
    }

    fn takes_schema(mut self, schema: Value, required: bool) -> Self {
        let content = json!({"application/json": {"schema": schema}});
        self.takes = Some(json!({"required": required, "content": content}));
        self.takes_nothing()
    }

    /// Needs a form with this schema.
    pub(crate) fn takes_form(mut self, schema: Value) -> Self {
        let content = json!({"application/x-www-form-urlencoded": {"schema": schema}});
        self.takes = Some(json!({"required": true, "content": content}));
        self.takes_nothing()
    }

    /// Reads a body, and passes over what it says.
    pub(crate) fn takes_nothing(mut self) -> Self {
        self.reads_body = true;
        self
    }

    /// Adds an example of the body.
    pub(crate) fn example(mut self, name: &str, example: Value) -> Self {
        if let Some(takes) = &mut self.takes {
            takes["content"]["application/json"]["examples"][name] = example;
        }
        self
    }

    /// Answers without a body.
    pub(crate) fn answers(mut self, status: u16, about: &str) -> Self {
        self.last = status.to_string();
        let answer = json!({"description": about});
        self.answers.insert(self.last.clone(), answer);
        self
    }

    fn answers_schema(self, status: u16, about: &str, schema: Value) -> Self {
        let content = json!({"schema": schema});
        let answered = self.answers(status, about);
        answered.content("application/json", content)
    }

    /// Has a body of this type in its last answer.
    pub(crate) fn content(mut self, media: &str, content: Value) -> Self {
        self.answers[&self.last]["content"][media] = content;
        let request_id = json!({"$ref": "#/components/headers/RequestId"});
        self.header("X-Request-Id", request_id)
    }

    /// Has this field in its last answer.
    pub(crate) fn header(mut self, name: &str, field: Value) -> Self {
        self.answers[&self.last]["headers"][name] = field;
        self
    }

    /// Answers with a value.
    pub(crate) fn gives<T: ToSchema>(mut self, status: u16, about: &str) -> Self {
        let schema = self.schemas.add::<T>(true);
        self.answers_schema(status, about, schema)
    }

    /// Answers with a value, which has the secret `member` unless it is a dry run.
    pub(crate) fn gives_secret<T: ToSchema>(mut self, member: &str, about: &str) -> Self {
        let schema = self.schemas.add_secret::<T>(member);
        self.answers_schema(201, about, schema)
    }

    /// Answers with a value that has a schema of `base.yaml`.
    pub(crate) fn gives_named(self, status: u16, name: &str, about: &str) -> Self {
        self.answers_schema(status, about, named(name))
    }

    /// Answers with what was done.
    pub(crate) fn gives_status(self, word: &str, about: &str) -> Self {
        let schema = json!({"type": "object", "required": ["status"], "properties": {"status": {"const": word}}});
        self.answers_schema(200, about, schema)
    }

    /// Answers with a page of a list: its `member` has the entries.
    pub(crate) fn gives_page<T: ToSchema>(mut self, member: &str, about: &str) -> Self {
        let entries = json!({"type": "array", "items": self.schemas.add::<T>(true)});
        let schema = json!({
            "type": "object",
            "required": [member, "next_cursor"],
            "properties": {member: entries, "next_cursor": {"type": ["string", "null"]}},
        });
        self.query("Cursor Limit")
            .answers_schema(200, about, schema)
    }

    /// Answers with an array, and the next page in `Link`.
    pub(crate) fn lists<T: ToSchema>(mut self, about: &str) -> Self {
        let entry = self.schemas.add::<T>(true);
        self.lists_schema(&entry, about)
    }

    /// Answers with an array of values that have a schema of `base.yaml`.
    pub(crate) fn lists_named(self, name: &str, about: &str) -> Self {
        self.lists_schema(&named(name), about)
    }

    fn lists_schema(self, entry: &Value, about: &str) -> Self {
        let array = json!({"type": "array", "items": entry});
        self.answers_schema(200, about, array).headers("Link")
    }

    /// Has bodies of these types in its last answer.
    pub(crate) fn contents(self, media: &str) -> Self {
        let types = media.split_whitespace();
        types.fold(self, |all, media| all.content(media, json!({})))
    }

    /// Has these fields of `base.yaml` in its last answer.
    pub(crate) fn headers(self, names: &str) -> Self {
        let reference = |name| json!({"$ref": format!("#/components/headers/{name}")});
        names
            .split_whitespace()
            .fold(self, |all, name| all.header(name, reference(name)))
    }

    /// Has a body of events in its last answer.
    pub(crate) fn streams(self, events: &str) -> Self {
        self.content(
            "text/event-stream",
            json!({"schema": {"description": events}}),
        )
    }

    /// Refuses for what not each route of its kind does, by names in [`REFUSALS`].
    pub(crate) fn refuses(self, names: &str) -> Self {
        names
            .split_whitespace()
            .fold(self, |all, name| all.refusal(name, None))
    }

    /// Refuses with a description of its own.
    pub(crate) fn refusal(mut self, name: &str, about: Option<&str>) -> Self {
        let known = REFUSALS
            .iter()
            .find(|known| known.0 == name || known.1 == name);
        let (status, response) = known.unwrap();
        let mut refusal = json!({"$ref": format!("#/components/responses/{response}")});
        if let Some(about) = about {
            refusal["description"] = about.into();
        }
        self.refusals.insert((*status).to_owned(), refusal);
        self
    }

    /// Refuses in the form of OAuth.
    pub(crate) fn refuses_as_oauth(mut self) -> Self {
        for status in [
            "400", "401", "403", "404", "408", "413", "415", "421", "429", "500", "503",
        ] {
            let refusal = json!({"$ref": "#/components/responses/OAuthError"});
            self.refusals.insert(status.to_owned(), refusal);
        }
        self
    }

    /// Does not refuse for this, other than the routes of its kind.
    pub(crate) fn never(mut self, status: &'static str) -> Self {
        self.never = status;
        self
    }

    fn takes_credential(&self) -> bool {
        self.credentials != Some("")
    }

    /// Adds the refusals that each route of its kind has.
    fn add_usual_refusals(mut self) -> Self {
        let own = std::mem::take(&mut self.refusals);
        let usual = match self.tag {
            "admin" => "401 403 421 429 503",
            _ if self.takes_credential() => "400 401 403 421 429 500 503",
            _ => "400 403 421 500 503",
        };
        let mut all = self.refuses(usual);
        if all.reads_body {
            all = all.refuses("408 413 415");
        }
        all.refusals.extend(own);
        all.refusals.remove(all.never);
        all
    }
}

/// A reference to a schema of the document.
fn named(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn parameter(name: &str) -> Value {
    json!({"$ref": format!("#/components/parameters/{name}")})
}

/// Returns the parameters of a path, by their names in `base.yaml`: `{token_id}` is `TokenId`.
fn path_parameters(path: &str) -> impl Iterator<Item = Value> {
    let names = path
        .split('{')
        .skip(1)
        .filter_map(|part| part.split('}').next());
    names.map(|name| match name {
        "id" => parameter("WorkspaceId"),
        _ => {
            let words = name.split('_');
            let words = words.map(|word| word[..1].to_uppercase() + &word[1..]);
            parameter(&words.collect::<String>())
        }
    })
}

/// A route with the description that its declaration has.
pub(crate) struct DescribedRoute {
    pub(crate) route: &'static Route,
    /// The lines of its comment: its summary, then more.
    pub(crate) about: &'static [&'static str],
    pub(crate) operation: Operation,
}

/// The parts of the document.
struct Document {
    paths: Map<String, Value>,
    schemas: Schemas,
}

impl Document {
    fn add(&mut self, path: &str, method: &str, operation: Value) {
        let item = &mut self.paths.entry(path).or_insert_with(|| json!({}));
        item[method.to_lowercase()] = operation;
    }

    fn add_route(&mut self, described: DescribedRoute) {
        let DescribedRoute {
            route,
            about,
            operation,
        } = described;
        let op = operation.add_usual_refusals();
        let offers = |offer| route.offers.contains(&offer);
        let mut names: Vec<_> = op.query.split_whitespace().collect();
        if op.tag != "admin" && op.takes_credential() {
            names.push("CallerClaim");
        }
        if offers(Offer::DryRun) || offers(Offer::OpenDryRun) {
            names.push("DryRun");
        }
        let mut answers = op.answers;
        answers.extend(op.refusals);
        let mut public = json!({"tags": [op.tag], "operationId": op.id, "responses": answers});
        public["parameters"] = names.iter().map(|name| parameter(name)).collect();
        if let Some(takes) = op.takes {
            public["requestBody"] = takes;
        }
        if offers(Offer::Console) {
            let mut console = public.clone();
            console["tags"] = json!(["admin"]);
            console["operationId"] = format!("{}AsOperator", op.id).into();
            console["summary"] = format!(
                "As `{} {}` of the public listener.",
                route.method, route.path
            )
            .into();
            console["security"] = json!([{"adminToken": []}]);
            self.add(route.api_path, route.method, console);
        }
        if let Some(kinds) = op.credentials {
            let kinds = kinds.split_whitespace();
            public["security"] = kinds.map(|kind| json!({kind: []})).collect();
        }
        if op.is_optional {
            let kinds = ["workspaceToken", "canvasToken", "orgToken", "adminToken"];
            let mut kinds: Vec<_> = kinds.iter().map(|kind| json!({*kind: []})).collect();
            kinds.push(json!({}));
            public["security"] = kinds.into();
        }
        let mut about = about.iter().map(|line| line.trim());
        public["summary"] = about.next().unwrap().into();
        let more: Vec<_> = about.filter(|line| !line.is_empty()).collect();
        if !more.is_empty() {
            public["description"] = more.join(" ").into();
        }
        self.add(route.path, route.method, public);
        self.schemas.extend(op.schemas);
    }
}

/// Returns the document.
fn describe() -> Value {
    let mut base: Value = serde_saphyr::from_str(include_str!("base.yaml")).unwrap();
    let base_parts = base.as_object_mut().unwrap();
    base_parts.remove("x-shared");
    let mut document = Document {
        paths: base_parts["paths"].as_object().unwrap().clone(),
        schemas: Schemas::of_closed_sets(),
    };
    for described in all_described() {
        document.add_route(described);
    }
    for (path, item) in &mut document.paths {
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            let mut all: Vec<_> = path_parameters(path).collect();
            all.extend(
                operation["parameters"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .cloned(),
            );
            operation["parameters"] = all.into();
        }
    }
    let admin = json!([{"url": "http://127.0.0.1:9090", "description": "The admin listener (admin.listen)."}]);
    for (_, item) in &mut document.paths {
        let is_admin = item
            .as_object()
            .is_some_and(|item| item.values().any(|op| op["tags"][0] == "admin"));
        if is_admin {
            item["servers"] = admin.clone();
        }
    }
    base["paths"] = document.paths.into();
    let made = document.schemas.into_all();
    // Types that are only flattened into others are in no body by themselves.
    let used = json!([base, made]).to_string();
    let is_used = |name: &str| used.contains(&format!("/schemas/{name}\""));
    let schemas = base["components"]["schemas"].as_object_mut().unwrap();
    for (name, schema) in made.into_iter().filter(|(name, _)| is_used(name)) {
        let before = schemas.insert(name.clone(), schema);
        assert!(before.is_none(), "base.yaml has the schema {name}, too");
    }
    base
}

/// Fails for a reference to what is not there.
fn assert_references_hold(document: &Value, value: &Value) {
    if let Some(to) = value["$ref"].as_str() {
        assert!(document.pointer(&to[1..]).is_some(), "{to}");
    }
    let members = value.as_object().into_iter().flat_map(Map::values);
    for inner in members.chain(value.as_array().into_iter().flatten()) {
        assert_references_hold(document, inner);
    }
}

/// Returns all declared routes.
fn all_described() -> impl Iterator<Item = DescribedRoute> {
    crate::described()
        .into_iter()
        .chain(crate::admin::described())
}

/// Returns the page with the table of the routes.
fn to_table() -> String {
    let mut text = include_str!("routes.md").to_owned();
    for DescribedRoute { route, about, .. } in all_described() {
        let has = |offer: Offer| route.offers.contains(&offer);
        let dry_run = if has(Offer::DryRun) || has(Offer::OpenDryRun) {
            "yes"
        } else {
            ""
        };
        let console = if has(Offer::Console) { "yes" } else { "" };
        let (role, event) = (
            route.role.as_str(),
            route.event.map_or("", |event| event.as_str()),
        );
        let (method, path, summary) = (route.method, route.path, about[0].trim());
        text.push_str(&format!(
            "| `{method} {path}` | `{role}` | {dry_run} | {event} | {console} | {summary} |\n"
        ));
    }
    text
}

/// Fails for a file in `docs` that has another text. With `UPDATE` it is written.
fn assert_has_text(name: &str, text: &str) {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let is_same = std::fs::read_to_string(path).unwrap() == text;
    let how = "UPDATE=1 cargo test --locked -p a2a-gateway-control-plane --lib openapi";
    assert!(is_same, "docs/{name} is out of date: write it with `{how}`");
}

#[test]
fn the_documents_say_what_the_declarations_say() {
    let document = describe();
    assert_references_hold(&document, &document);
    assert_has_text("openapi.yaml", &to_yaml(document));
    assert_has_text("reference/routes.md", &to_table());
}
