//! The settings of a workspace: one list, from which follow what a workspace has ([`WorkspaceSettings`]), the columns
//! of its row, the bodies of requests ([`SettingsPatch`], [`NewWorkspaceBody`]), the entry of a policy
//! ([`PolicyEntry`]), and what readers, records and other callers than operators see of them.

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sqlx::any::AnyRow;

use super::{
    CallerProof, DeliveryMode, Liveness, Resolve, SealedTls, Status, StoredProbe, StoredWake,
};
use crate::rows::{Statement, bind, read};
use kernel::config::{Bridging, CardAccess, ChainMode, CompletionMode, RefusalStatus, Transport};
use kernel::ids::WorkspaceId;
use trust::SealedSecret;

/// Where the JSON of a workspace has a setting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visibility {
    /// [`WorkspaceView`](super::WorkspaceView) names it: always there, or for some readers only.
    ByName,
    /// After the others, once it is set.
    OnceSet,
}

/// Callers that may change a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// All that may change the workspace.
    Editors,
    /// Operators only.
    Operators,
}

/// Form of a setting in the record of a change, next to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing.
    Name,
    /// Its new value.
    Value,
    /// Its new value, if it is changed: the record of a creation has none.
    Change,
    /// The beginning of its new value, which its owner words.
    Label,
    /// The origin of its new value, a URL whose path may contain a secret.
    Origin,
}

/// A setting that a request says.
#[derive(Clone, Debug)]
pub struct SaidSetting {
    /// Its name.
    pub name: &'static str,
    /// Callers that may change it.
    pub set_by: SetBy,
    /// Form in audit records.
    pub recorded: Recorded,
    /// The new value; `null` if nothing of it is recorded.
    pub value: Value,
}

/// Declares the settings. A row: `name: type in the row as type in JSON, Visibility, SetBy, Recorded`.
///
/// - `plain`: stored as it is said. All bodies have it.
/// - `changed`: as `plain`, but only changes have it.
/// - `made`: what is stored is made from what is said. All bodies have it.
/// - `secret`: as `made`, but no policy has it.
macro_rules! settings {
    (
        plain { $($(#[$plain_doc:meta])* $plain:ident: $plain_type:ty as $plain_json:ty, $($plain_rule:ident),+;)+ }
        changed { $($(#[$changed_doc:meta])* $changed:ident: $changed_type:ty, $($changed_rule:ident),+;)+ }
        made { $($(#[$made_doc:meta])* $made:ident: $made_type:ty as $made_json:ty, $($made_rule:ident),+;)+ }
        secret { $($(#[$secret_doc:meta])* $secret:ident: $secret_type:ty, $($secret_rule:ident),+;)+ }
    ) => {
        /// Settings of a workspace, as stored.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct WorkspaceSettings {
            $($(#[$plain_doc])* pub $plain: $plain_type,)+
            $($(#[$changed_doc])* pub $changed: $changed_type,)+
            $($(#[$made_doc])* pub $made: Option<$made_type>,)+
            $($(#[$secret_doc])* pub $secret: Option<$secret_type>,)+
            /// Place of the credential, by [`credential_base`](super::credential_base); `None`: it waits for the URL
            /// that an operator names.
            pub upstream_auth_base: Option<String>,
        }

        impl WorkspaceSettings {
            /// The columns.
            pub(super) const COLUMNS: &str = concat!(
                $(stringify!($plain), ", ",)+ $(stringify!($changed), ", ",)+ $(stringify!($made), ", ",)+
                $(stringify!($secret), ", ",)+ "upstream_auth_base"
            );

            /// Reads the columns.
            pub(super) fn read(row: &AnyRow) -> Result<Self, sqlx::Error> {
                Ok(Self {
                    $($plain: read(row, stringify!($plain))?,)+
                    $($changed: read(row, stringify!($changed))?,)+
                    $($made: read(row, stringify!($made))?,)+
                    $($secret: read(row, stringify!($secret))?,)+
                    upstream_auth_base: read(row, "upstream_auth_base")?,
                })
            }

            /// Binds the values of the columns, in their order.
            pub(super) fn bind<'q>(
                &self,
                mut query: Statement<'q>,
            ) -> Result<Statement<'q>, sqlx::Error> {
                $(query = bind(query, &self.$plain)?;)+
                $(query = bind(query, &self.$changed)?;)+
                $(query = bind(query, &self.$made)?;)+
                $(query = bind(query, &self.$secret)?;)+
                bind(query, &self.upstream_auth_base)
            }

            /// Sets what a patch says, as far as that is stored as it is said.
            pub fn apply_plain(&mut self, patch: &SettingsPatch) {
                $(if let Some(said) = &patch.$plain { self.$plain.clone_from(said); })+
                $(if let Some(said) = &patch.$changed { self.$changed.clone_from(said); })+
            }

            /// Returns the patch that says the same of all that is stored as it is said, and of the parent.
            pub fn to_plain_patch(&self) -> SettingsPatch {
                SettingsPatch {
                    $($plain: Some(self.$plain.clone()),)+
                    $($changed: Some(self.$changed.clone()),)+
                    parent_id: Some(self.parent_id.as_ref().map(ToString::to_string)),
                    ..SettingsPatch::default()
                }
            }

            /// Serializes the settings that the JSON of a workspace has only once they are set.
            pub(super) fn serialize_optional<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
                $(serialize_setting!(map, self.$plain, stringify!($plain), $($plain_rule),+);)+
                $(serialize_setting!(map, self.$changed, stringify!($changed), $($changed_rule),+);)+
                Ok(())
            }
        }

        /// New values of settings, also the body of `PATCH /workspaces/{id}`. An absent member leaves a setting as it
        /// is; `null` clears one that can be cleared, and is a wrong type for any other.
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct SettingsPatch {
            $($(#[$plain_doc])* #[serde(deserialize_with = "deserialize_present")] pub $plain: Option<$plain_type>,)+
            $($(#[$changed_doc])* #[serde(deserialize_with = "deserialize_present")] pub $changed: Option<$changed_type>,)+
            $($(#[$made_doc])* #[serde(deserialize_with = "deserialize_present")] pub $made: Option<Option<$made_json>>,)+
            $(
                $(#[$secret_doc])*
                #[serde(deserialize_with = "deserialize_present")]
                pub $secret: Option<Option<Box<RawValue>>>,
            )+
            /// URLs of its instances, for assumed liveness.
            #[serde(deserialize_with = "deserialize_present")]
            pub urls: Option<Option<Vec<String>>>,
        }

        impl SettingsPatch {
            /// Returns what it says, in the order of the list.
            pub fn said(&self) -> Vec<SaidSetting> {
                let mut all = Vec::new();
                $(note_said!(all, self.$plain, stringify!($plain), $($plain_rule),+);)+
                $(note_said!(all, self.$changed, stringify!($changed), $($changed_rule),+);)+
                $(note_said!(all, self.$made, stringify!($made), $($made_rule),+);)+
                $(note_said!(all, self.$secret.as_ref().map(|_| ()), stringify!($secret), $($secret_rule),+);)+
                note_said!(all, self.urls, "urls", ByName, Operators, Name);
                all
            }
        }

        /// The body of `POST /workspaces`. A member that is `null` counts as absent.
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct NewWorkspaceBody {
            /// Id of the workspace; absent: one is made.
            pub id: Option<String>,
            /// True: a removed workspace of this id comes back.
            #[serde(default)]
            pub recreate: bool,
            $($(#[$plain_doc])* pub $plain: Option<$plain_json>,)+
            $($(#[$made_doc])* pub $made: Option<$made_json>,)+
            $($(#[$secret_doc])* pub $secret: Option<Box<RawValue>>,)+
            /// URLs of its instances, for assumed liveness.
            pub urls: Option<Vec<String>>,
        }

        impl NewWorkspaceBody {
            /// Returns the settings that it says.
            pub fn into_patch(self) -> SettingsPatch {
                SettingsPatch {
                    $($plain: self.$plain.map(Into::into),)+
                    $($made: self.$made.map(Some),)+
                    $($secret: self.$secret.map(Some),)+
                    urls: self.urls.map(Some),
                    ..SettingsPatch::default()
                }
            }
        }

        /// A workspace of a policy. A member that is `null` counts as absent, and one with its default is left out.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields)]
        pub struct PolicyEntry {
            /// Id of the workspace.
            pub id: String,
            $($(#[$plain_doc])* pub $plain: Option<$plain_json>,)+
            $($(#[$made_doc])* pub $made: Option<$made_json>,)+
            /// URLs of its instances, for assumed liveness.
            pub urls: Option<Vec<String>>,
            /// Absent: a workspace that is there stays as it is, so that a policy undoes no pause without saying so.
            pub paused: Option<bool>,
        }

        impl PolicyEntry {
            /// Returns the entry that says all settings of a workspace.
            pub fn from_settings(id: &WorkspaceId, settings: &WorkspaceSettings) -> Self {
                Self {
                    id: id.to_string(),
                    $($plain: settings.$plain.clone().into(),)+
                    $($made: settings.$made.as_ref().map(AsSaid::as_said),)+
                    urls: None,
                    paused: None,
                }
            }

            /// Returns the patch that sets those of its settings that `selects` names: an absent one to its default.
            pub fn to_patch(&self, selects: impl Fn(&str) -> bool) -> SettingsPatch {
                SettingsPatch {
                    $($plain: selects(stringify!($plain))
                        .then(|| self.$plain.clone().map(Into::into).unwrap_or_default()),)+
                    $($made: selects(stringify!($made)).then(|| self.$made.clone()),)+
                    urls: selects("urls").then(|| self.urls.clone()),
                    ..SettingsPatch::default()
                }
            }
        }
    };
}

macro_rules! serialize_setting {
    ($map:ident, $value:expr, $name:expr, $shown:ident, $($rest:ident),+) => {
        if Visibility::$shown == Visibility::OnceSet {
            let value = json!($value);
            if !value.is_null() {
                $map.serialize_entry($name, &value)?;
            }
        }
    };
}

macro_rules! note_said {
    ($all:ident, $said:expr, $name:expr, $shown:ident, $set_by:ident, $recorded:ident) => {
        if let Some(said) = &$said {
            $all.push(SaidSetting {
                name: $name,
                set_by: SetBy::$set_by,
                recorded: Recorded::$recorded,
                value: match Recorded::$recorded {
                    Recorded::Name => Value::Null,
                    _ => json!(said),
                },
            });
        }
    };
}

settings! {
    plain {
        /// Display name.
        name: String as String, ByName, Editors, Name;
        /// Purpose of the agent, as free text of its owner.
        role: Option<String> as String, ByName, Editors, Name;
        /// Maximum calls in progress; `None`: `limits.target_concurrency`.
        max_concurrent: Option<u32> as u32, ByName, Editors, Name;
        /// Completion mode for incomplete calls; `None`: that of `a2a.complete`.
        complete: Option<CompletionMode> as CompletionMode, OnceSet, Editors, Name;
        /// True if callers may ask for push notifications; `None`: as `a2a.push_notifications`.
        push_notifications: Option<bool> as bool, OnceSet, Editors, Name;
        /// Access to its card; `None`: that of `card.access`.
        card_access: Option<CardAccess> as CardAccess, OnceSet, Operators, Name;
        /// Org that the workspace belongs to. `None` counts as an org of its own.
        org: Option<String> as String, ByName, Editors, Label;
        /// URL that its agent listens at, as registered.
        url: Option<String> as String, ByName, Editors, Origin;
        /// URL on the agents' own network.
        internal_url: Option<String> as String, ByName, Editors, Origin;
        /// URL that its card is fetched from.
        card_url: Option<String> as String, ByName, Editors, Origin;
        /// Delivery mode: push or poll.
        delivery_mode: DeliveryMode as DeliveryMode, ByName, Editors, Value;
        /// Source of its liveness.
        liveness: Liveness as Liveness, ByName, Editors, Change;
        /// Proof in the tokens that it gets with calls; `None`: the default.
        proof: Option<CallerProof> as CallerProof, OnceSet, Editors, Value;
        /// Translation of calls; `None`: that of `a2a.bridge`.
        bridge: Option<Bridging> as Bridging, OnceSet, Editors, Value;
        /// The calls with which it gets a chain token; `None`: those of persons, and those of a chain.
        chain: Option<ChainMode> as ChainMode, OnceSet, Editors, Value;
        /// What carries its calls where its card names several interfaces; `None`: `auto`.
        transport: Option<Transport> as Transport, OnceSet, Editors, Value;
        /// Addresses of its name that get calls, for assumed liveness; `None`: the first.
        resolve: Option<Resolve> as Resolve, OnceSet, Operators, Value;
    }
    changed {
        /// HTTP status of refusals of its JSON-RPC calls; `None`: that of `a2a.refusal_status`.
        refusal_status: Option<RefusalStatus>, OnceSet, Editors, Name;
        /// Lifecycle status.
        status: Status, ByName, Editors, Change;
    }
    made {
        /// Parent workspace. Kept when the parent is removed.
        parent_id: WorkspaceId as String, ByName, Editors, Value;
        /// Probe of the agent, for assumed liveness.
        probe: StoredProbe as Value, ByName, Operators, Name;
    }
    secret {
        /// Credential with which the gateway calls the agent. Never shown.
        upstream_auth: SealedSecret, ByName, Editors, Name;
        /// TLS towards the agent.
        upstream_tls: SealedTls, ByName, Operators, Name;
        /// Waker of the agent while it sleeps; `None`: that of `wake.url`.
        wake: StoredWake, ByName, Operators, Name;
    }
}

/// Deserializes a present member, `null` included. serde's own `Option` treats `null` as absent.
fn deserialize_present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(reader).map(Some)
}

/// A stored setting in the form in which it is said.
trait AsSaid<T> {
    fn as_said(&self) -> T;
}

impl AsSaid<String> for WorkspaceId {
    fn as_said(&self) -> String {
        self.to_string()
    }
}

impl AsSaid<Value> for StoredProbe {
    fn as_said(&self) -> Value {
        json!(self)
    }
}
