//! Server reflection, so that `grpcurl` and the like need no files.

use prost::Message as _;
use prost_reflect::{DynamicMessage, Value};

use crate::schema::{HEALTH, POOL, REFLECTION, SERVICE};

/// The gRPC code `NOT_FOUND`.
const NOT_FOUND: i32 = 5;

/// Answers one request of reflection. `None`: it cannot be read.
pub fn answer_reflection(request: &[u8]) -> Option<Vec<u8>> {
    let message = |name: &str| {
        let name = format!("grpc.reflection.v1alpha.{name}");
        let descriptor = POOL.get_message_by_name(&name);
        DynamicMessage::new(descriptor.expect("the embedded descriptors have reflection"))
    };
    let mut asked = message("ServerReflectionRequest");
    asked.merge(request).ok()?;
    let text = |name: &str| {
        asked
            .has_field_by_name(name)
            .then(|| {
                let value = asked.get_field_by_name(name)?;
                value.as_str().map(str::to_owned)
            })
            .flatten()
    };
    let mut response = message("ServerReflectionResponse");
    if let Some(host) = text("host") {
        response.set_field_by_name("valid_host", Value::String(host));
    }
    response.set_field_by_name("original_request", Value::Message(asked.clone()));
    if text("list_services").is_some() {
        let names = [SERVICE, HEALTH].into_iter().chain(REFLECTION);
        let services = names.map(|name| {
            let mut service = message("ServiceResponse");
            service.set_field_by_name("name", Value::String(name.to_owned()));
            Value::Message(service)
        });
        let mut list = message("ListServiceResponse");
        list.set_field_by_name("service", Value::List(services.collect()));
        response.set_field_by_name("list_services_response", Value::Message(list));
        return Some(response.encode_to_vec());
    }
    let by_name = text("file_by_filename").and_then(|name| POOL.get_file_by_name(&name));
    let file = by_name.or_else(|| find_file(&text("file_containing_symbol")?));
    match file {
        Some(file) => {
            // The file with those that it imports, since clients ask for each of them otherwise.
            let mut files = vec![file.clone()];
            files.extend(file.dependencies());
            let files = files
                .iter()
                .map(|file| Value::Bytes(file.encode_to_vec().into()));
            let mut found = message("FileDescriptorResponse");
            found.set_field_by_name("file_descriptor_proto", Value::List(files.collect()));
            response.set_field_by_name("file_descriptor_response", Value::Message(found));
        }
        None => {
            let mut failed = message("ErrorResponse");
            failed.set_field_by_name("error_code", Value::I32(NOT_FOUND));
            let why = "there is no such file or symbol here";
            failed.set_field_by_name("error_message", Value::String(why.to_owned()));
            response.set_field_by_name("error_response", Value::Message(failed));
        }
    }
    Some(response.encode_to_vec())
}

/// Returns the file of a message, an enumeration, a service or a method.
fn find_file(symbol: &str) -> Option<prost_reflect::FileDescriptor> {
    // Of the two services of reflection one is described.
    let symbol = symbol.replace("grpc.reflection.v1.", "grpc.reflection.v1alpha.");
    let service = |name: &str| {
        POOL.get_service_by_name(name)
            .map(|found| found.parent_file())
    };
    POOL.get_message_by_name(&symbol)
        .map(|found| found.parent_file())
        .or_else(|| {
            POOL.get_enum_by_name(&symbol)
                .map(|found| found.parent_file())
        })
        .or_else(|| service(&symbol))
        .or_else(|| service(symbol.rsplit_once('.')?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(field: u8, text: &str) -> DynamicMessage {
        let request = [&[field << 3 | 2, text.len() as u8], text.as_bytes()].concat();
        let name = "grpc.reflection.v1alpha.ServerReflectionResponse";
        let descriptor = POOL.get_message_by_name(name).unwrap();
        DynamicMessage::decode(descriptor, &answer_reflection(&request).unwrap()[..]).unwrap()
    }

    #[test]
    fn services_files_and_symbols_are_described() {
        let listed = ask(7, "").to_string();
        assert!(
            listed.contains(SERVICE) && listed.contains(HEALTH),
            "{listed}"
        );
        for symbol in [
            SERVICE,
            "lf.a2a.v1.A2AService.SendMessage",
            "lf.a2a.v1.Task",
            "lf.a2a.v1.Role",
            REFLECTION[0],
        ] {
            assert!(
                ask(4, symbol).has_field_by_name("file_descriptor_response"),
                "{symbol}"
            );
        }
        assert!(ask(3, "a2a.proto").has_field_by_name("file_descriptor_response"));
        assert!(ask(4, "lf.a2a.v1.Nothing").has_field_by_name("error_response"));
        assert!(answer_reflection(&[0xff]).is_none());
    }
}
