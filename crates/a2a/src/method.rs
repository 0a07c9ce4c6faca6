//! JSON-RPC method names of all A2A versions, as one closed set ([`Method`]).

use super::Generation;
use super::words::words;

/// Declares the methods: the label of each, its names in 1.0 and in 0.3, and older ones.
macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident => $label:literal $(, $v1:literal, $v0:literal $(| $old:literal)*)?;)*) => {
        words! {
            /// The method of a call, under the name of any version. Its word is the label of metrics: from a closed
            /// set, so that callers cannot add time series.
            #[derive(Hash, PartialOrd, Ord)]
            Method { $($(#[$doc])* $method => $label,)* }
        }

        impl Method {
            /// Classifies a method name, compared exactly (JSON-RPC 2.0, 4: names are case-sensitive).
            pub fn parse(name: &str) -> Self {
                match name {
                    $($($v1 | $v0 $(| $old)* => Self::$method,)?)*
                    _ => Self::Other,
                }
            }

            /// Returns its name in A2A 1.0; `None`: it has none.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $($(Self::$method => Some($v1),)?)*
                    _ => None,
                }
            }

            /// Returns its name in JSON-RPC of `generation`; `None`: it has none there.
            pub const fn name_in(self, generation: Generation) -> Option<&'static str> {
                match generation {
                    Generation::V1 => self.name(),
                    // Some clients of 0.3 call it, which defines no such method.
                    Generation::V0 if matches!(self, Self::ListTasks) => None,
                    Generation::V0 => match self {
                        $($(Self::$method => Some($v0),)?)*
                        _ => None,
                    },
                }
            }
        }
    };
}

methods! {
    /// Not a call: a request for the agent's card.
    AgentCard => "agent_card";
    /// Cancels a task.
    CancelTask => "cancel_task", "CancelTask", "tasks/cancel";
    /// Sets a push configuration.
    CreatePushConfig => "create_push_config", "CreateTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/set" | "tasks/pushNotification/set";
    /// Deletes a push configuration.
    DeletePushConfig => "delete_push_config", "DeleteTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/delete";
    /// Gets the card for authenticated callers.
    GetExtendedCard => "get_extended_card", "GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard";
    /// Gets a push configuration.
    GetPushConfig => "get_push_config", "GetTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/get" | "tasks/pushNotification/get";
    /// Gets a task.
    GetTask => "get_task", "GetTask", "tasks/get";
    /// Lists the push configurations of a task.
    ListPushConfigs => "list_push_configs", "ListTaskPushNotificationConfigs",
        "tasks/pushNotificationConfig/list";
    /// Lists tasks.
    ListTasks => "list_tasks", "ListTasks", "tasks/list";
    /// Sends a message.
    SendMessage => "send_message", "SendMessage", "message/send" | "tasks/send";
    /// Sends a message, and streams the answer. No version defines `message/sendSubscribe`; the envelope editor renames
    /// it.
    SendStreamingMessage => "send_streaming_message", "SendStreamingMessage",
        "message/stream" | "tasks/sendSubscribe" | "message/sendSubscribe";
    /// Streams the events of a task.
    SubscribeToTask => "subscribe_to_task", "SubscribeToTask", "tasks/resubscribe";
    /// A name that no version defines.
    Other => "other";
    /// No method was read: the exchange was rejected before its body, or the body has none.
    Unread => "unread";
}

impl Method {
    /// Returns the metric label: from a closed set, so that callers cannot add time series.
    pub const fn label(self) -> &'static str {
        self.as_str()
    }

    /// Returns the position in [`Method::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns true if the call refers to one existing task by its id.
    pub const fn is_of_a_task(self) -> bool {
        matches!(
            self,
            Self::CancelTask | Self::GetTask | Self::SubscribeToTask
        ) || self.is_of_push()
    }

    /// Returns true if the call is about the push configurations of a task.
    pub const fn is_of_push(self) -> bool {
        matches!(
            self,
            Self::CreatePushConfig
                | Self::DeletePushConfig
                | Self::GetPushConfig
                | Self::ListPushConfigs
        )
    }

    /// Returns true if the call has a message in `params.message`.
    pub const fn sends(self) -> bool {
        matches!(self, Self::SendMessage | Self::SendStreamingMessage)
    }

    /// Returns true if the answer shows more than a card or what its caller said: tasks, their configurations, an
    /// extended card. The answer to an unknown method may.
    pub const fn returns_content(self) -> bool {
        !self.sends() && !matches!(self, Self::AgentCard | Self::Unread)
    }

    /// Returns true if the call is answered with a stream.
    pub const fn streams(self) -> bool {
        matches!(self, Self::SendStreamingMessage | Self::SubscribeToTask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_the_position_in_all() {
        for (i, method) in Method::ALL.into_iter().enumerate() {
            assert_eq!(method.index(), i);
        }
    }

    #[test]
    fn a_name_of_either_generation_is_read_back() {
        for method in Method::ALL {
            for generation in [Generation::V0, Generation::V1] {
                if let Some(name) = method.name_in(generation) {
                    assert_eq!(Method::parse(name), method, "{name}");
                    assert_eq!(Generation::of_method(name), generation, "{name}");
                }
            }
        }
        assert_eq!(Method::ListTasks.name_in(Generation::V0), None);
    }
}
