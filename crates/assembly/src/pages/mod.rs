//! The web pages: the files of `pages/`, embedded, and the header fields that isolate a page. There
//! is no build step: the files are served as they are in the folder. No I/O: the server of a
//! [`Site`] decides on its path and its access.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use sha2::{Digest as _, Sha256};

/// Content policy of the pages: scripts, styles, images and requests of the same origin only
/// (`'self'` includes WebSockets), and images that a page makes of bytes it has (`blob:`). No
/// inline code, no strings as code or markup, no frames, no forms, no other base.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Header fields of every file. The last two keep pages of other origins from holding a reference
/// to these pages, and from reading their files as images or scripts.
const FIELDS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    // For browsers without frame-ancestors.
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    // Cached and revalidated each time, so that the page of a new binary is used at once.
    (CACHE_CONTROL, "no-cache"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// File name of the page itself.
const INDEX: &str = "index.html";

/// One page with all of its files. They are served from one folder, wherever they are below
/// `pages/`.
pub struct Site(LazyLock<BTreeMap<&'static str, File>>);

struct File {
    media_type: &'static str,
    bytes: &'static [u8],
    tag: String,
}

/// Declares a page by its own files; it has the shared ones, too.
macro_rules! site {
    (@all $($path:literal,)+) => {
        Site(LazyLock::new(|| [
            $(File::from_bytes($path, include_bytes!(concat!("../../../../pages/", $path)))),+
        ].into()))
    };
    ($($path:literal,)+) => {
        site! {
            @all $($path,)+
            "shared/dom.js", "shared/hierarchy.js", "shared/icon.svg", "shared/refusal.js",
            "shared/sse.js", "shared/token.js", "shared/tokens.css", "shared/visible.js",
        }
    };
}

/// The canvas: a page that talks with agents.
pub static CANVAS: Site = site! {
    "canvas/index.html", "canvas/advice.js", "canvas/agent.js", "canvas/canvas.css",
    "canvas/canvas.js", "canvas/card.js", "canvas/content.js", "canvas/conversation.js",
    "canvas/copy.js", "canvas/cut.js", "canvas/dialog.js", "canvas/files.js", "canvas/gateway.js",
    "canvas/kept.js", "canvas/live.js", "canvas/markdown.js", "canvas/parts.js",
    "canvas/playground.js", "canvas/question.js", "canvas/raw.js", "canvas/record.js", "canvas/resume.js",
    "canvas/said.css", "canvas/talk.js", "canvas/tree.css", "canvas/workspaces.js",
    "vendor/a2a-sdk.js", "vendor/markdown-it.js",
};

/// The console: a page that shows operators what the gateway does.
pub static CONSOLE: Site = site! {
    "console/index.html", "console/act.js", "console/ask.js", "console/list.css",
    "console/reading.css", "console/audit.js", "console/caps.js", "console/console.css",
    "console/console.js", "console/calls.js", "console/charts.js", "console/explain.js", "console/facts.js",
    "console/gateway.js", "console/health.js", "console/list.js", "console/make.js", "console/model.js", "console/overview.css", "console/overview.js", "console/policy.js",
    "console/session.js", "console/show.js", "console/signin.js", "console/stops.js",
    "console/tree.js", "console/usage.js", "console/workspace.js", "vendor/uplot.js",
};

impl File {
    fn from_bytes(path: &'static str, bytes: &'static [u8]) -> (&'static str, Self) {
        let name = path.rsplit('/').next().unwrap_or(path);
        let media_type = match name.rsplit('.').next() {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "application/octet-stream",
        };
        let tag = URL_SAFE_NO_PAD.encode(&Sha256::digest(bytes)[..12]);
        let file = Self {
            media_type,
            bytes,
            tag: format!("\"{tag}\""),
        };
        (name, file)
    }
}

impl Site {
    /// Returns the response to a `GET` of the file `name` (empty: the page itself); 304 if the
    /// client has it. A `HEAD` gets the same without the body. `None`: there is no such file.
    pub fn respond_to(&self, name: &str, asked: &HeaderMap) -> Option<Response<Bytes>> {
        let name = if name.is_empty() { INDEX } else { name };
        let file = self.0.get(name)?;
        let mut response = Response::new(Bytes::new());
        if has_current_version(asked, &file.tag) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            *response.body_mut() = Bytes::from_static(file.bytes);
        }
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(file.media_type));
        if let Ok(tag) = HeaderValue::from_str(&file.tag) {
            fields.insert(ETAG, tag);
        }
        for (name, value) in FIELDS {
            fields.insert(name, HeaderValue::from_static(value));
        }
        Some(response)
    }

    /// Returns the names of the files.
    pub fn file_names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }
}

/// True if the client has the version that `tag` names (RFC 9110, 13.1.2).
fn has_current_version(asked: &HeaderMap, tag: &str) -> bool {
    asked
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|value| value.trim().trim_start_matches("W/"))
        .any(|value| value == tag || value == "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_itself_has_no_name_and_each_file_its_type() {
        let page = CANVAS.respond_to("", &HeaderMap::new()).unwrap();
        assert_eq!(page.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!(page.status(), 200);
        for name in CANVAS.file_names() {
            let file = CANVAS.respond_to(name, &HeaderMap::new()).unwrap();
            assert!(!file.body().is_empty(), "{name}");
            let media_type = &file.headers()[CONTENT_TYPE];
            assert_ne!(media_type, "application/octet-stream", "{name}");
        }
        for name in [".", "..", "nothing.js", "canvas/canvas.js", "manifest.json"] {
            assert!(
                CANVAS.respond_to(name, &HeaderMap::new()).is_none(),
                "{name}"
            );
        }
    }

    #[test]
    fn who_has_a_file_is_told_so() {
        let first = CANVAS.respond_to("canvas.js", &HeaderMap::new()).unwrap();
        let tag = first.headers()[ETAG].to_str().unwrap();
        for (known, status) in [
            (tag.to_owned(), 304),
            (format!("\"other\", W/{tag}"), 304),
            ("*".to_owned(), 304),
            ("\"other\"".to_owned(), 200),
        ] {
            let mut asked = HeaderMap::new();
            asked.insert(IF_NONE_MATCH, known.parse().unwrap());
            let answer = CANVAS.respond_to("canvas.js", &asked).unwrap();
            assert_eq!(answer.status(), status, "{known}");
            assert_eq!(answer.body().is_empty(), status == 304);
            assert_eq!(answer.headers()[CONTENT_SECURITY_POLICY], POLICY);
        }
    }

    #[test]
    fn no_page_may_run_what_did_not_come_from_here() {
        assert!(!POLICY.contains("unsafe") && !POLICY.contains("http") && !POLICY.contains('*'));
        for (name, file) in CANVAS.0.iter().filter(|(name, _)| name.ends_with(".html")) {
            let text = std::str::from_utf8(file.bytes).unwrap();
            for tag in text.split('<').filter_map(|tag| tag.split('>').next()) {
                for word in [" on", " style=", "javascript:", "http:", "https:"] {
                    assert!(!tag.contains(word), "{name}: <{tag}>");
                }
                assert!(!tag.starts_with("style"), "{name}");
            }
            for script in text.split("<script").skip(1) {
                assert!(script.starts_with(" type=\"module\" src="), "{name}");
                assert!(script.contains("></script>"), "{name}");
            }
        }
    }
}
