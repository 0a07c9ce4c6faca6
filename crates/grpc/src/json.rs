//! Messages in protobuf and in JSON (ProtoJSON). What one of them cannot carry is an error, and never rounded.

use prost::Message as _;
use prost_reflect::{
    DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions, Value,
};

/// The largest integer that a double, as which protobuf carries free-form numbers, has exactly.
const EXACT_MAX: u64 = 1 << 53;

/// A message that cannot be read or carried.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// It is no protobuf message of this type.
    #[error("the message is no {name} in protobuf: {why}")]
    Protobuf {
        /// The type.
        name: String,
        /// The cause.
        why: prost::DecodeError,
    },
    /// It is no JSON of this type.
    #[error("the message is no {name} in JSON: {why}")]
    Json {
        /// The type.
        name: String,
        /// The cause.
        why: serde_json::Error,
    },
    /// It has a number that the other form cannot carry.
    #[error(
        "the number {0} cannot be carried between JSON and protobuf without rounding; send it as a string"
    )]
    Number(String),
}

/// Reads a message in protobuf, and returns it in JSON.
///
/// # Errors
/// [`MessageError`].
pub fn decode_message(
    descriptor: MessageDescriptor,
    message: &[u8],
    change: impl FnOnce(&mut DynamicMessage),
) -> Result<Vec<u8>, MessageError> {
    let name = descriptor.name().to_owned();
    let mut message =
        DynamicMessage::decode(descriptor, message).map_err(|why| MessageError::Protobuf {
            name: name.clone(),
            why,
        })?;
    change(&mut message);
    refuse_infinite(&message)?;
    let options = SerializeOptions::new();
    let json = message.serialize_with_options(serde_json::value::Serializer, &options);
    let mut json = json.map_err(|why| MessageError::Json {
        name: name.clone(),
        why,
    })?;
    shorten_numbers(&mut json);
    serde_json::to_vec(&json).map_err(|why| MessageError::Json { name, why })
}

/// Reads a message in JSON, and returns it in protobuf. Members that the type does not have are left out.
///
/// # Errors
/// [`MessageError`].
pub fn encode_message(
    descriptor: MessageDescriptor,
    json: &[u8],
    change: impl FnOnce(&mut DynamicMessage),
) -> Result<Vec<u8>, MessageError> {
    if let Some(number) = find_inexact_number(json) {
        return Err(MessageError::Number(number.to_owned()));
    }
    let name = descriptor.name().to_owned();
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let mut reader = serde_json::Deserializer::from_slice(json);
    let message = DynamicMessage::deserialize_with_options(descriptor, &mut reader, &options);
    let mut message = message
        .and_then(|message| reader.end().map(|()| message))
        .map_err(|why| MessageError::Json { name, why })?;
    change(&mut message);
    Ok(message.encode_to_vec())
}

/// Refuses numbers that JSON does not have.
fn refuse_infinite(message: &DynamicMessage) -> Result<(), MessageError> {
    message
        .fields()
        .try_for_each(|(_, value)| refuse_infinite_in(value))
}

fn refuse_infinite_in(value: &Value) -> Result<(), MessageError> {
    match value {
        Value::F64(number) if !number.is_finite() => Err(MessageError::Number(number.to_string())),
        Value::Message(message) => refuse_infinite(message),
        Value::List(values) => values.iter().try_for_each(refuse_infinite_in),
        Value::Map(values) => values.values().try_for_each(refuse_infinite_in),
        _ => Ok(()),
    }
}

/// Writes doubles that are integers as integers: protobuf does not distinguish them, and readers of JSON do.
fn shorten_numbers(json: &mut serde_json::Value) {
    match json {
        serde_json::Value::Number(number) => {
            if let Some(double) = number.as_f64().filter(|_| number.is_f64())
                && double.fract() == 0.0
                && double.abs() <= EXACT_MAX as f64
            {
                *number = (double as i64).into();
            }
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(shorten_numbers),
        serde_json::Value::Object(members) => members.values_mut().for_each(shorten_numbers),
        _ => {}
    }
}

/// True if a JSON text has no number that protobuf would have to round.
pub fn has_exact_numbers(json: &[u8]) -> bool {
    find_inexact_number(json).is_none()
}

/// Finds a number of a JSON text that a double does not have: an integer beyond 2^53 or a value beyond the largest
/// double. Of a text that is no JSON it finds anything or nothing.
fn find_inexact_number(json: &[u8]) -> Option<&str> {
    let mut rest = json;
    while let Some(at) = rest
        .iter()
        .position(|byte| matches!(byte, b'"' | b'-' | b'0'..=b'9'))
    {
        rest = &rest[at..];
        let length = match rest[0] {
            b'"' => string_length(rest),
            _ => {
                let is_part =
                    |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let length = rest
                    .iter()
                    .position(|byte| !is_part(byte))
                    .unwrap_or(rest.len());
                let number = std::str::from_utf8(&rest[..length]).unwrap_or_default();
                if !is_exact(number) {
                    return Some(number);
                }
                length
            }
        };
        rest = &rest[length..];
    }
    None
}

/// Returns the length of the string with which a text begins.
fn string_length(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'"' => break,
            b'\\' => at += 1,
            _ => {}
        }
    }
    at.min(text.len())
}

/// True for a number that the other form has: a double, and of an integer, one up to 2^53.
fn is_exact(number: &str) -> bool {
    // What is no number is no JSON, which its reader says.
    let is_finite = number.parse::<f64>().map_or(true, f64::is_finite);
    let (digits, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_integer = !number.contains(['e', 'E']) && fraction.bytes().all(|digit| digit == b'0');
    is_finite && (!is_integer || is_short(digits.trim_start_matches('-')))
}

fn is_short(digits: &str) -> bool {
    digits
        .parse::<u64>()
        .is_ok_and(|integer| integer <= EXACT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Method;

    fn request() -> MessageDescriptor {
        Method::find("SendMessage").unwrap().request()
    }

    fn there_and_back(json: &str) -> String {
        let message = encode_message(request(), json.as_bytes(), |_| {}).unwrap();
        let json = decode_message(request(), &message, |_| {}).unwrap();
        String::from_utf8(json).unwrap()
    }

    #[test]
    fn a_message_is_the_same_there_and_back() {
        let json = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hä"},{"raw":"AQID","filename":"f","mediaType":"a/b"},{"data":{"a":[1,2.5,null,true,{"b":-9007199254740992}]}}],"metadata":{"n":1e300}},"configuration":{"historyLength":0}}"#;
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&there_and_back(json)), read(json));
    }

    #[test]
    fn members_that_protobuf_does_not_have_are_left_out() {
        let json = r#"{"message":{"message_id":"m","kind":"message"},"x":{"y":1}}"#;
        assert_eq!(there_and_back(json), r#"{"message":{"messageId":"m"}}"#);
    }

    #[test]
    fn numbers_that_a_double_does_not_have_are_refused() {
        for number in [
            "9007199254740993",
            "-9007199254740993",
            "12345678901234567890",
            "1e309",
            "9007199254740993.0",
        ] {
            let json = format!(r#"{{"metadata":{{"a \" 99999999999999999999":{number}}}}}"#);
            let failed = encode_message(request(), json.as_bytes(), |_| {}).unwrap_err();
            assert!(
                matches!(&failed, MessageError::Number(found) if found == number),
                "{failed}"
            );
        }
        for number in [
            "9007199254740992",
            "-9007199254740992",
            "0.1",
            "1e300",
            "-0",
            "3",
        ] {
            let json = format!(r#"{{"metadata":{{"a":{number}}}}}"#);
            assert!(
                encode_message(request(), json.as_bytes(), |_| {}).is_ok(),
                "{number}"
            );
        }
    }

    #[test]
    fn what_json_cannot_carry_is_refused() {
        let json = br#"{"metadata":{"a":1}}"#;
        let message = encode_message(request(), json, |_| {}).unwrap();
        let one = 1.0_f64.to_le_bytes();
        let at = message.windows(8).position(|part| part == one).unwrap();
        for number in [f64::NAN, f64::INFINITY] {
            let mut message = message.clone();
            message[at..at + 8].copy_from_slice(&number.to_le_bytes());
            assert!(matches!(
                decode_message(request(), &message, |_| {}),
                Err(MessageError::Number(_))
            ));
        }
        assert!(matches!(
            decode_message(request(), &[0xff], |_| {}),
            Err(MessageError::Protobuf { .. })
        ));
        assert!(matches!(
            encode_message(request(), b"{", |_| {}),
            Err(MessageError::Json { .. })
        ));
        assert!(matches!(
            encode_message(request(), b"{} {}", |_| {}),
            Err(MessageError::Json { .. })
        ));
    }
}
