//! Parts: 0.3 nests a file, 1.0 has its members beside each other ([`Part`]).
//!
//! | 0.3 JSON-RPC | 1.0 | 0.3 HTTP+JSON |
//! |---|---|---|
//! | `{"kind":"text","text"}` | `{"text"}` | `{"text"}` |
//! | `{"kind":"file","file":{"bytes"\|"uri","mimeType","name"}}` | `{"raw"\|"url","mediaType","filename"}` | `{"file":{"fileWithBytes"\|"fileWithUri","mimeType","name"}}` |
//! | `{"kind":"data","data":{}}` | `{"data"}`: any JSON | `{"data":{"data":{}}}` |
//!
//! Clients of HTTP+JSON 0.3 may also write the parts of JSON-RPC, with `kind`.
//!
//! A value of 1.0 that is no object becomes `{"value":…}` in 0.3, with [`FLAG`] in its metadata, as the SDKs
//! do it, and is unwrapped on its way back.

use memchr::memmem;

use super::failure::Failure;
use super::file_bytes::put_bytes;
use super::pass::Pass;
use super::table::{Form, to_camel_case};
use crate::json::{Kind, Value};
use crate::walker::Walker;

/// The member of `metadata` that marks a wrapped value.
const FLAG: &str = "data_part_compat";

const LABEL: &str = "part";

/// The members of a part. They are small, or not copied before the part is written.
#[derive(Default)]
struct Part {
    kind: Option<Value>,
    text: Option<Value>,
    raw: Option<Value>,
    url: Option<Value>,
    data: Option<Value>,
    metadata: Option<Value>,
    media_type: Option<Value>,
    filename: Option<Value>,
}

/// The content of a part.
#[derive(Clone, Copy)]
enum Content {
    Text(Value),
    Raw(Value),
    Url(Value),
    Data(Value),
}

impl Part {
    fn slot(&mut self, form: Form, name: &[u8]) -> Option<(&mut Option<Value>, &'static str)> {
        Some(match (name, form) {
            (b"text", _) => (&mut self.text, "text"),
            (b"data", _) => (&mut self.data, "data"),
            (b"metadata", _) => (&mut self.metadata, "metadata"),
            (b"kind" | b"type", Form::V0 | Form::V0Rest) => (&mut self.kind, "kind"),
            (b"raw", Form::V1) => (&mut self.raw, "raw"),
            (b"url", Form::V1) => (&mut self.url, "url"),
            (b"mediaType", Form::V1) => (&mut self.media_type, "mediaType"),
            (b"filename", Form::V1) => (&mut self.filename, "filename"),
            _ => return None,
        })
    }

    /// The members of a `file` of 0.3, in the names of either binding.
    fn slot_of_file(&mut self, name: &[u8]) -> Option<(&mut Option<Value>, &'static str)> {
        Some(match name {
            b"bytes" | b"fileWithBytes" => (&mut self.raw, "bytes"),
            b"uri" | b"fileWithUri" => (&mut self.url, "uri"),
            b"mimeType" => (&mut self.media_type, "mimeType"),
            b"name" => (&mut self.filename, "name"),
            _ => return None,
        })
    }

    /// Returns the content: that of its `kind`, else the first that it has.
    fn find_content(&self, text: &[u8]) -> Option<Content> {
        let given = |value: Option<Value>| value.filter(|value| value.kind != Kind::Null);
        let data = self.data.map(Content::Data);
        if self.kind.is_some_and(|kind| kind.equals(text, "data")) && given(self.data).is_some() {
            return data;
        }
        let file = given(self.raw).map(Content::Raw);
        let file = file.or_else(|| given(self.url).map(Content::Url));
        if self.kind.is_some_and(|kind| kind.equals(text, "file")) && file.is_some() {
            return file;
        }
        let said = given(self.text).map(Content::Text);
        said.or(file).or(data)
    }
}

/// Writes the part that follows. One without a content that is known is refused in a request, and
/// left out of an answer.
pub(super) fn write_part(pass: &mut Pass<'_>) -> Result<(), Failure> {
    let mut part = Part::default();
    read_part(pass, &mut part)?;
    let Some(content) = part.find_content(pass.text) else {
        if pass.settings.is_request {
            return Err(Failure::Params(LABEL));
        }
        pass.left.add(LABEL, "part");
        return Ok(());
    };
    let known = [part.text, part.raw, part.url, part.data];
    let spoken = known.into_iter().flatten();
    let surplus = spoken.filter(|value| value.kind != Kind::Null).count();
    for _ in 1..surplus {
        pass.left.add(LABEL, "content");
    }
    pass.out.push(b'{');
    match content {
        Content::Data(data) => data_part(pass, data, &part),
        Content::Text(text) => {
            put_kind(pass, "text");
            pass.put_member("text", text);
            count_lost(pass, &part);
            put_metadata(pass, part.metadata, None);
        }
        Content::Raw(value) | Content::Url(value) => {
            file_part(pass, value, matches!(content, Content::Raw(_)), &part)?;
            put_metadata(pass, part.metadata, None);
        }
    }
    pass.close();
    Ok(())
}

fn read_part(pass: &mut Pass<'_>, part: &mut Part) -> Result<(), Failure> {
    if pass.walker.peek() != Some(b'{') {
        return Err(Failure::Params(LABEL));
    }
    let form = pass.settings.from;
    pass.walk_members(|pass, name| {
        let is_object = pass.walker.peek() == Some(b'{');
        if name == b"file" && form.is_v0() && is_object {
            return pass.walk_members(|pass, name| {
                let said = to_camel_case(name);
                keep_value(pass, part.slot_of_file(said.as_deref().unwrap_or(name)))
            });
        }
        let said = to_camel_case(name);
        keep_value(pass, part.slot(form, said.as_deref().unwrap_or(name)))
    })?;
    // Without a kind it is the proto's form, which nests the data.
    if form == Form::V0Rest && part.kind.is_none() {
        part.data = part
            .data
            .and_then(|data| find_member(pass.text, data, b"data"));
    }
    Ok(())
}

/// Walks over a value and keeps its position; counts one without a slot.
fn keep_value(
    pass: &mut Pass<'_>,
    slot: Option<(&mut Option<Value>, &'static str)>,
) -> Result<(), Failure> {
    if let Some((slot, name)) = slot {
        return pass.fill_slot(slot, name);
    }
    pass.walker.read_value()?;
    pass.left.add(LABEL, "other");
    Ok(())
}

fn put_kind(pass: &mut Pass<'_>, kind: &str) {
    if pass.settings.to == Form::V0 {
        pass.put_word("kind", kind);
    }
}

/// Counts the members that 0.3 has for files only.
fn count_lost(pass: &mut Pass<'_>, part: &Part) {
    if pass.settings.to == Form::V1 {
        return;
    }
    for (value, name) in [(part.media_type, "mediaType"), (part.filename, "filename")] {
        if value.is_some_and(|value| !value.is_void()) {
            pass.left.add(LABEL, name);
        }
    }
}

fn file_part(
    pass: &mut Pass<'_>,
    content: Value,
    is_bytes: bool,
    part: &Part,
) -> Result<(), Failure> {
    let [bytes, uri, media_type, filename] = match pass.settings.to {
        Form::V1 => ["raw", "url", "mediaType", "filename"],
        Form::V0 => ["bytes", "uri", "mimeType", "name"],
        Form::V0Rest => ["fileWithBytes", "fileWithUri", "mimeType", "name"],
    };
    let is_nested = pass.settings.to.is_v0();
    if is_nested {
        put_kind(pass, "file");
        pass.put("\"file\":{");
    }
    pass.put_name(if is_bytes { bytes } else { uri });
    match is_bytes && content.kind == Kind::String {
        true => put_bytes(pass, content, part.media_type, part.kind.is_none())?,
        false => pass.copy(content),
    }
    pass.out.push(b',');
    for (value, name) in [(part.media_type, media_type), (part.filename, filename)] {
        if let Some(value) = value.filter(|value| !value.is_void()) {
            pass.put_member(name, value);
        }
    }
    if is_nested {
        pass.close();
        pass.out.push(b',');
    }
    Ok(())
}

fn data_part(pass: &mut Pass<'_>, data: Value, part: &Part) {
    put_kind(pass, "data");
    let flagged = part.metadata.and_then(|metadata| flag_in(pass, metadata));
    match pass.settings.to {
        Form::V1 => {
            let wrapped = flagged.filter(|flag| flag.raw(pass.text) == b"true");
            let value = wrapped.and_then(|_| find_member(pass.text, data, b"value"));
            pass.put_member("data", value.unwrap_or(data));
            put_metadata(pass, part.metadata, wrapped.map(|_| false));
        }
        to => {
            if to == Form::V0Rest {
                pass.put("\"data\":{");
            }
            let is_object = data.kind == Kind::Object;
            pass.put("\"data\":");
            pass.put(if is_object { "" } else { "{\"value\":" });
            pass.copy(data);
            pass.put(if is_object { "" } else { "}" });
            pass.put(if to == Form::V0Rest { "}," } else { "," });
            count_lost(pass, part);
            put_metadata(pass, part.metadata, (!is_object).then_some(true));
        }
    }
}

/// Returns the value of the flag in `metadata`.
fn flag_in(pass: &Pass<'_>, metadata: Value) -> Option<Value> {
    memmem::find(metadata.raw(pass.text), FLAG.as_bytes())?;
    find_member(pass.text, metadata, FLAG.as_bytes())
}

/// Writes `metadata`: as it is, or with the flag or without it. Nothing if it then has no member.
fn put_metadata(pass: &mut Pass<'_>, metadata: Option<Value>, flag: Option<bool>) {
    let metadata = metadata.filter(|value| value.kind != Kind::Null);
    let Some(is_flagged) = flag else {
        if let Some(metadata) = metadata {
            pass.put_member("metadata", metadata);
        }
        return;
    };
    let start = pass.out.len();
    pass.put("\"metadata\":{");
    let (text, out) = (pass.text, &mut pass.out);
    let before = out.len();
    if let Some(metadata) = metadata.filter(|value| value.kind == Kind::Object) {
        // The text was read before, so this walk cannot fail.
        let _ = Walker::from(text, metadata.start).walk_object(|walker, name| {
            let value = walker.read_value()?;
            if *name.unescaped != *FLAG.as_bytes() {
                out.extend_from_slice(&text[name.start..value.end]);
                out.push(b',');
            }
            Ok(value)
        });
    }
    if is_flagged {
        pass.put_name(FLAG);
        pass.put("true");
    }
    if pass.out.len() > before {
        pass.close();
        pass.out.push(b',');
    } else {
        pass.out.truncate(start);
    }
}

/// Returns the last member `wanted` of an object that was read before.
pub(super) fn find_member(text: &[u8], object: Value, wanted: &[u8]) -> Option<Value> {
    let mut found = None;
    if object.kind == Kind::Object {
        let _ = Walker::from(text, object.start).walk_object(|walker, name| {
            let value = walker.read_value()?;
            if *name.unescaped == *wanted {
                found = Some(value);
            }
            Ok(value)
        });
    }
    found
}
