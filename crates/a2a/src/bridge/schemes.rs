//! Security schemes and requirements of cards: 0.3 has the `type` of a scheme in it, 1.0 around it.

use crate::fields::{Fields, array_elements, join_array};
use crate::generation::Generation;

/// The types of schemes: in 0.3, in 1.0, and their members in 0.3. `in` is `location` in 1.0.
pub(crate) const TYPES: [(&str, &str, &[&str]); 5] = [
    (
        "apiKey",
        "apiKeySecurityScheme",
        &["in", "name", "description"],
    ),
    (
        "http",
        "httpAuthSecurityScheme",
        &["scheme", "bearerFormat", "description"],
    ),
    (
        "oauth2",
        "oauth2SecurityScheme",
        &["flows", "oauth2MetadataUrl", "description"],
    ),
    (
        "openIdConnect",
        "openIdConnectSecurityScheme",
        &["openIdConnectUrl", "description"],
    ),
    ("mutualTLS", "mtlsSecurityScheme", &["description"]),
];

/// The OAuth flows of 0.3, in the order in which one is kept where one is allowed. The SDK for JavaScript has
/// the same order, that for Python keeps the last.
const FLOWS: [&str; 4] = [
    "authorizationCode",
    "clientCredentials",
    "implicit",
    "password",
];

/// The places of an API key.
const PLACES: [&str; 3] = ["header", "query", "cookie"];

/// Where schemes are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// 0.3.
    V0,
    /// 0.3 with at most one OAuth flow, beside the same scheme of 1.0.
    V0OneFlow,
    /// 1.0.
    V1,
}

/// Returns `securitySchemes` with each scheme in all of `shapes`: one object has the members of all.
/// Schemes of an unknown type are left out.
pub(super) fn convert_schemes(text: &str, shapes: &[Shape]) -> Option<String> {
    let schemes = Fields::parse(text)?;
    let written = schemes.iter().filter_map(|(name, scheme)| {
        let scheme = Fields::parse(scheme)?;
        let members = shapes.iter().map(|shape| {
            let scheme = convert_scheme(&scheme, *shape)?;
            Some(scheme.strip_prefix('{')?.strip_suffix('}')?.to_owned())
        });
        let members = members.collect::<Option<Vec<_>>>()?;
        Some(format!("{name}:{{{}}}", members.join(",")))
    });
    Some(format!("{{{}}}", written.collect::<Vec<_>>().join(",")))
}

fn convert_scheme(scheme: &Fields<'_>, shape: Shape) -> Option<String> {
    let said = scheme.get_text("type");
    let (v0_type, v1_type, members) = TYPES.into_iter().find(|(v0, v1, _)| match &said {
        Some(said) => said == v0,
        None => scheme.contains(v1),
    })?;
    let inner = scheme.get_object(v1_type);
    let is_v0 = said.is_some();
    let from = if is_v0 { scheme } else { inner.as_ref()? };
    let mut to = Fields::default();
    if shape != Shape::V1 {
        to.set_text("type", v0_type);
    }
    let place_in = |is_v0| if is_v0 { "in" } else { "location" };
    for name in members.iter().copied() {
        match name {
            "in" => {
                let said = from.get_text(place_in(is_v0));
                let place = PLACES
                    .into_iter()
                    .find(|place| said.as_deref() == Some(*place));
                to.set_text(place_in(shape != Shape::V1), place.unwrap_or(PLACES[0]));
            }
            "flows" => {
                let flows = from.get("flows").filter(|_| has_value(from, "flows"));
                to.set(name, convert_flows(flows.unwrap_or("{}"), shape));
            }
            _ if has_value(from, name) => {
                to.set(name, from.get(name).unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }
    Some(match shape {
        Shape::V1 => format!("{{\"{v1_type}\":{}}}", to.to_json()),
        _ => to.to_json(),
    })
}

fn has_value(fields: &Fields<'_>, name: &str) -> bool {
    let value = fields.get(name);
    value.is_some_and(|value| !matches!(value, "null" | "\"\""))
}

/// Returns the OAuth flows: 1.0 has one, 0.3 has no `deviceCode` and requires `scopes`.
fn convert_flows(text: &str, shape: Shape) -> String {
    let flows = Fields::parse(text).unwrap_or_default();
    let mut written = Fields::default();
    let known = FLOWS.into_iter();
    let known = known.filter_map(|name| Some((name, flows.get_object(name)?)));
    let most = if shape == Shape::V0 { FLOWS.len() } else { 1 };
    for (name, mut flow) in known.take(most) {
        if shape != Shape::V1 {
            flow.remove("pkceRequired");
            if !flow.contains("scopes") {
                flow.set("scopes", "{}");
            }
        }
        written.set(name, flow.to_json());
    }
    if let Some(device) = flows.get("deviceCode")
        && shape == Shape::V1
        && written.is_empty()
    {
        written.set("deviceCode", device.to_owned());
    }
    written.to_json()
}

/// Returns a list of requirements in the form of `to`: `{"a":["s"]}` or
/// `{"schemes":{"a":{"list":["s"]}}}`. `None`: it is no list.
pub(super) fn convert_requirements(text: &str, to: Generation) -> Option<String> {
    let list = array_elements(text)?.into_iter();
    let list = list.filter_map(|one| convert_requirement(one, to));
    Some(join_array(&list.collect::<Vec<_>>()))
}

fn convert_requirement(text: &str, to: Generation) -> Option<String> {
    let fields = Fields::parse(text)?;
    let inner = fields
        .get("schemes")
        .filter(|inner| array_elements(inner).is_none());
    let inner = inner.and_then(Fields::parse);
    let required = inner.as_ref().unwrap_or(&fields);
    let mut written = Vec::new();
    for (name, scopes) in required.iter() {
        let list = if inner.is_some() {
            // An empty list is left out by writers of `ProtoJSON`.
            let scopes = Fields::parse(scopes);
            scopes.and_then(|scopes| scopes.get("list").map(str::to_owned))
        } else {
            array_elements(scopes).map(|_| scopes.to_owned())
        };
        let list = list.unwrap_or_else(|| "[]".to_owned());
        written.push(match to {
            Generation::V0 => format!("{name}:{list}"),
            Generation::V1 => format!("{name}:{{\"list\":{list}}}"),
        });
    }
    let written = written.join(",");
    Some(match to {
        Generation::V0 => format!("{{{written}}}"),
        Generation::V1 => format!("{{\"schemes\":{{{written}}}}}"),
    })
}
