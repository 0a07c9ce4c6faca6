//! The methods of the service and the descriptors of their messages.

use std::sync::LazyLock;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, Value};

/// The service of A2A 1.0.
pub const SERVICE: &str = "lf.a2a.v1.A2AService";
/// The service of health checks.
pub const HEALTH: &str = "grpc.health.v1.Health";
/// The services of server reflection. Their messages are the same.
pub const REFLECTION: [&str; 2] = [
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

/// The descriptors of A2A 1.0, of health checks and of reflection, as the official packages have them, without options.
/// `tests/clients/grpc_front.py` compares them with the package's.
pub(crate) static SCHEMA: &[u8] = include_bytes!("schema.binpb");

pub(crate) static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(SCHEMA).expect("the embedded descriptors are whole"));

static METHODS: LazyLock<Vec<Method>> = LazyLock::new(|| {
    let service = POOL
        .get_service_by_name(SERVICE)
        .expect("the embedded descriptors have the service");
    service.methods().map(Method).collect()
});

/// A method of A2A 1.0. Its name is that of JSON-RPC.
#[derive(Debug)]
pub struct Method(MethodDescriptor);

impl Method {
    /// Returns the method with a name.
    pub fn find(name: &str) -> Option<&'static Self> {
        METHODS.iter().find(|method| method.0.name() == name)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the path at a server.
    pub fn path(&self) -> String {
        format!("/{SERVICE}/{}", self.0.name())
    }

    /// True if it is answered by a stream.
    pub fn streams(&self) -> bool {
        self.0.is_server_streaming()
    }

    /// Returns the descriptor of its request.
    pub fn request(&self) -> MessageDescriptor {
        self.0.input()
    }

    /// Returns the descriptor of its response, or of one message of its stream.
    pub fn response(&self) -> MessageDescriptor {
        self.0.output()
    }
}

/// Returns the value of a field of text.
pub fn text_value(text: &str) -> Value {
    Value::String(text.to_owned())
}

/// The target that a tenant of the gateway names.
#[derive(Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The workspace.
    pub workspace: &'a str,
    /// The tenant of the agent; empty for none.
    pub tenant: &'a str,
}

/// Splits a tenant of the gateway: a workspace, or a workspace, `/` and the agent's own tenant.
pub fn split_tenant(tenant: &str) -> Target<'_> {
    let (workspace, tenant) = tenant.split_once('/').unwrap_or((tenant, ""));
    Target { workspace, tenant }
}

/// Returns the message of the health service that says whether the gateway serves.
pub fn health_response(serving: bool) -> Vec<u8> {
    let descriptor = POOL
        .get_message_by_name("grpc.health.v1.HealthCheckResponse")
        .expect("the embedded descriptors have the health service");
    let mut response = DynamicMessage::new(descriptor);
    // 1 SERVING, 2 NOT_SERVING.
    let status = if serving { 1 } else { 2 };
    response.set_field_by_name("status", Value::EnumNumber(status));
    response.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_its_eleven_methods() {
        let methods = METHODS
            .iter()
            .map(|method| (method.name(), method.streams()));
        assert_eq!(
            Vec::from_iter(methods),
            [
                ("SendMessage", false),
                ("SendStreamingMessage", true),
                ("GetTask", false),
                ("ListTasks", false),
                ("CancelTask", false),
                ("SubscribeToTask", true),
                ("CreateTaskPushNotificationConfig", false),
                ("GetTaskPushNotificationConfig", false),
                ("ListTaskPushNotificationConfigs", false),
                ("GetExtendedAgentCard", false),
                ("DeleteTaskPushNotificationConfig", false),
            ]
        );
    }

    #[test]
    fn a_tenant_names_a_workspace_and_maybe_a_tenant_of_it() {
        let split = |tenant| {
            let Target { workspace, tenant } = split_tenant(tenant);
            (workspace, tenant)
        };
        assert_eq!(split("dev"), ("dev", ""));
        assert_eq!(split("dev/eu/1"), ("dev", "eu/1"));
        assert_eq!(split(""), ("", ""));
    }
}
