//! JSON-RPC method names of all A2A versions, as one closed set ([`Method`]).

use super::Generation;
use super::words::words;

words! {
    /// The method of a call, under the name of any version. Its word is the label of metrics: from a closed set, so
    /// that callers cannot add time series.
    #[derive(Hash, PartialOrd, Ord)]
    Method {
        /// Not a call: a request for the agent's card.
        AgentCard => "agent_card",
        /// `CancelTask`, `tasks/cancel`.
        CancelTask => "cancel_task",
        /// `CreateTaskPushNotificationConfig`, `tasks/pushNotificationConfig/set`.
        CreatePushConfig => "create_push_config",
        /// `DeleteTaskPushNotificationConfig`, `tasks/pushNotificationConfig/delete`.
        DeletePushConfig => "delete_push_config",
        /// `GetExtendedAgentCard`, `agent/getAuthenticatedExtendedCard`.
        GetExtendedCard => "get_extended_card",
        /// `GetTaskPushNotificationConfig`, `tasks/pushNotificationConfig/get`.
        GetPushConfig => "get_push_config",
        /// `GetTask`, `tasks/get`.
        GetTask => "get_task",
        /// `ListTaskPushNotificationConfigs`, `tasks/pushNotificationConfig/list`.
        ListPushConfigs => "list_push_configs",
        /// `ListTasks`, `tasks/list`.
        ListTasks => "list_tasks",
        /// `SendMessage`, `message/send`; 0.1: `tasks/send`.
        SendMessage => "send_message",
        /// `SendStreamingMessage`, `message/stream`; 0.1: `tasks/sendSubscribe`.
        SendStreamingMessage => "send_streaming_message",
        /// `SubscribeToTask`, `tasks/resubscribe`.
        SubscribeToTask => "subscribe_to_task",
        /// A name that no version defines.
        Other => "other",
        /// No method was read: the exchange was rejected before its body, or the body has none.
        Unread => "unread",
    }
}

impl Method {
    /// Classifies a method name, compared exactly (JSON-RPC 2.0, 4: names are case-sensitive).
    pub fn parse(name: &str) -> Self {
        match name {
            "CancelTask" | "tasks/cancel" => Self::CancelTask,
            "CreateTaskPushNotificationConfig"
            | "tasks/pushNotificationConfig/set"
            | "tasks/pushNotification/set" => Self::CreatePushConfig,
            "DeleteTaskPushNotificationConfig" | "tasks/pushNotificationConfig/delete" => {
                Self::DeletePushConfig
            }
            "GetExtendedAgentCard" | "agent/getAuthenticatedExtendedCard" => Self::GetExtendedCard,
            "GetTaskPushNotificationConfig"
            | "tasks/pushNotificationConfig/get"
            | "tasks/pushNotification/get" => Self::GetPushConfig,
            "GetTask" | "tasks/get" => Self::GetTask,
            "ListTaskPushNotificationConfigs" | "tasks/pushNotificationConfig/list" => {
                Self::ListPushConfigs
            }
            "ListTasks" | "tasks/list" => Self::ListTasks,
            "SendMessage" | "message/send" | "tasks/send" => Self::SendMessage,
            // No version defines `message/sendSubscribe`; the envelope editor renames it.
            "SendStreamingMessage"
            | "message/stream"
            | "tasks/sendSubscribe"
            | "message/sendSubscribe" => Self::SendStreamingMessage,
            "SubscribeToTask" | "tasks/resubscribe" => Self::SubscribeToTask,
            _ => Self::Other,
        }
    }

    /// Returns the metric label: from a closed set, so that callers cannot add time series.
    pub const fn label(self) -> &'static str {
        self.as_str()
    }

    /// Returns its name in A2A 1.0; `None`: it has none.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::CancelTask => "CancelTask",
            Self::CreatePushConfig => "CreateTaskPushNotificationConfig",
            Self::DeletePushConfig => "DeleteTaskPushNotificationConfig",
            Self::GetExtendedCard => "GetExtendedAgentCard",
            Self::GetPushConfig => "GetTaskPushNotificationConfig",
            Self::GetTask => "GetTask",
            Self::ListPushConfigs => "ListTaskPushNotificationConfigs",
            Self::ListTasks => "ListTasks",
            Self::SendMessage => "SendMessage",
            Self::SendStreamingMessage => "SendStreamingMessage",
            Self::SubscribeToTask => "SubscribeToTask",
            Self::AgentCard | Self::Other | Self::Unread => return None,
        })
    }

    /// Returns its name in JSON-RPC of `generation`; `None`: it has none there.
    pub const fn name_in(self, generation: Generation) -> Option<&'static str> {
        if matches!(generation, Generation::V1) {
            return self.name();
        }
        Some(match self {
            Self::CancelTask => "tasks/cancel",
            Self::CreatePushConfig => "tasks/pushNotificationConfig/set",
            Self::DeletePushConfig => "tasks/pushNotificationConfig/delete",
            Self::GetExtendedCard => "agent/getAuthenticatedExtendedCard",
            Self::GetPushConfig => "tasks/pushNotificationConfig/get",
            Self::GetTask => "tasks/get",
            Self::ListPushConfigs => "tasks/pushNotificationConfig/list",
            Self::SendMessage => "message/send",
            Self::SendStreamingMessage => "message/stream",
            Self::SubscribeToTask => "tasks/resubscribe",
            Self::AgentCard | Self::ListTasks | Self::Other | Self::Unread => return None,
        })
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

    /// Returns true if the answer shows more than a card or what its caller said: tasks, their configurations, an extended
    /// card. The answer to an unknown method may.
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
