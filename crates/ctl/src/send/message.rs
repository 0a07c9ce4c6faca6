//! What `send` says: text, files and data, as the parts of one message.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::super::client::body_of;
use super::super::failure::{Failure, OrFail as _};
use super::super::terminal::read_input;

/// Longest text on standard input, and most bytes of all files, as base64 adds a third to them: above the gateway's
/// default of 10 MiB for a request.
const BYTES_MAX: u64 = 48 * 1024 * 1024;

/// The message, and what it belongs to.
#[derive(clap::Args, Debug)]
pub(super) struct MessageArguments {
    /// What to say; `-` reads it from standard input
    #[arg(required_unless_present_any = ["files", "data"])]
    text: Option<String>,
    /// Send a file along, its media type guessed by its name; may be given again
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Send JSON along, as a part of its own; may be given again
    #[arg(long, value_name = "JSON")]
    data: Vec<String>,
    /// Answer the agent's question: the task that it asked in
    #[arg(long, value_name = "TASK")]
    reply_to: Option<String>,
    /// Go on in this conversation, which is the agent's `contextId` of an answer
    #[arg(long, value_name = "ID")]
    context_id: Option<String>,
}

impl MessageArguments {
    /// Returns a bare message: the gateway completes it in the agent's generation.
    ///
    /// # Errors
    /// A file cannot be read or is too large, or data are not JSON.
    pub(super) fn build_body(&self) -> Result<Value, Failure> {
        let text = match self.text.as_deref() {
            Some("-") => Some(read_text()?),
            text => text.map(str::to_owned),
        };
        let mut message = json!({"taskId": self.reply_to, "contextId": self.context_id});
        if self.files.is_empty() && self.data.is_empty() {
            message["text"] = json!(text);
        } else {
            let text = text.map(|text| Ok(json!({"kind": "text", "text": text})));
            let mut left = BYTES_MAX;
            let files = self
                .files
                .iter()
                .map(|path| build_file_part(path, &mut left));
            let data = self.data.iter().map(|data| build_data_part(data));
            let parts = text.into_iter().chain(files).chain(data);
            message["parts"] = parts.collect::<Result<_, Failure>>()?;
        }
        Ok(json!({"message": body_of(message)}))
    }
}

fn read_text() -> Result<String, Failure> {
    let text = read_input(BYTES_MAX + 1).or_fail("cannot read standard input as text")?;
    match text.len() as u64 {
        0 => Err(Failure::usage(
            "standard input is empty: there is nothing to send",
        )),
        size if size > BYTES_MAX => Err(Failure::usage(format!(
            "standard input has more than {BYTES_MAX} bytes"
        ))),
        _ => Ok(text),
    }
}

/// Returns a file as a part. Takes its size from the bytes that are `left`.
fn build_file_part(path: &Path, left: &mut u64) -> Result<Value, Failure> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(*left + 1).read_to_end(&mut bytes));
    let read = read.map_err(|error| Failure::usage(format!("cannot read {shown}: {error}")))?;
    *left = left.checked_sub(read as u64).ok_or_else(|| {
        Failure::usage(format!(
            "{shown} makes more than {BYTES_MAX} bytes of files: put it where the agent can fetch it, and send its URL"
        ))
    })?;
    let kind = mime_guess::from_path(path).first_or_octet_stream();
    let name = path.file_name().map(|name| name.to_string_lossy());
    let file =
        json!({"name": name, "mimeType": kind.essence_str(), "bytes": STANDARD.encode(&bytes)});
    Ok(json!({"kind": "file", "file": file}))
}

fn build_data_part(text: &str) -> Result<Value, Failure> {
    let data: Value = serde_json::from_str(text).map_err(|error| {
        Failure::usage(format!(
            "--data takes JSON, such as '{{\"a\": 1}}': {error}"
        ))
    })?;
    // 0.3 has objects there only, which every agent takes.
    match data.is_object() {
        true => Ok(json!({"kind": "data", "data": data})),
        false => Err(Failure::usage(
            "--data takes an object, such as '{\"rows\": [1, 2]}': put the value into a member",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> MessageArguments {
        MessageArguments {
            text: Some("hello".to_owned()),
            files: Vec::new(),
            data: Vec::new(),
            reply_to: None,
            context_id: None,
        }
    }

    #[test]
    fn a_text_alone_stays_a_text_and_a_reply_names_its_task() {
        let built = message().build_body().unwrap();
        assert_eq!(built, json!({"message": {"text": "hello"}}));
        let reply = MessageArguments {
            reply_to: Some("t-1".to_owned()),
            context_id: Some("c-1".to_owned()),
            ..message()
        };
        assert_eq!(
            reply.build_body().unwrap(),
            json!({"message": {"text": "hello", "taskId": "t-1", "contextId": "c-1"}})
        );
    }

    #[test]
    fn files_have_their_name_and_type_and_data_is_an_object() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        std::fs::write(&path, [0, 0, 0]).unwrap();
        let odd = folder.path().join("odd");
        std::fs::write(&odd, "").unwrap();
        let sent = MessageArguments {
            files: vec![path, odd],
            data: vec![r#"{"rows": [1]}"#.to_owned()],
            ..message()
        };
        assert_eq!(
            sent.build_body().unwrap()["message"]["parts"],
            json!([
                {"kind": "text", "text": "hello"},
                {"kind": "file", "file": {"name": "a.png", "mimeType": "image/png", "bytes": "AAAA"}},
                {"kind": "file", "file": {"name": "odd", "mimeType": "application/octet-stream", "bytes": ""}},
                {"kind": "data", "data": {"rows": [1]}},
            ])
        );
        for wrong in ["[1]", "{", "1"] {
            let sent = MessageArguments {
                data: vec![wrong.to_owned()],
                ..message()
            };
            let error = sent.build_body().unwrap_err();
            assert!(error.to_string().contains("--data takes"), "{error}");
        }
        let path = folder.path().join("a.png");
        let error = build_file_part(&path, &mut 2).unwrap_err().to_string();
        assert!(error.contains("more than"), "{error}");
    }
}
