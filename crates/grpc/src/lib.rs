//! gRPC of A2A 1.0: its methods, its messages in protobuf and in JSON, the frames of messages, and statuses. Pure: no
//! I/O, no clock. Both sides of the gateway speak gRPC by it: in front, where a call of gRPC becomes one of JSON-RPC,
//! and behind, where a call of JSON-RPC becomes one of gRPC for an agent that has nothing else.

mod frame;
mod json;
mod reflection;
mod schema;
mod status;

pub use self::frame::{FrameError, FrameReader, MessageEncoding, encode_frame};
pub use self::json::{MessageError, decode_message, encode_message, has_exact_numbers};
pub use self::reflection::answer_reflection;
pub use self::schema::{
    HEALTH, Method, REFLECTION, SERVICE, Target, health_response, split_tenant, text_value,
};
pub use self::status::{Code, Status};
