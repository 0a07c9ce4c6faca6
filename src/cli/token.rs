//! `a2a-gateway token`: requests signed tokens from a running gateway, inspects and verifies them.

use std::io::{self, Read as _};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use clap::Subcommand;
use gateway_client::{Registry, RegistryError};
use serde_json::{Value, json};

use super::base_url::{BaseUrlError, GatewayUrl, RequestError};
use super::{USAGE, block_on, complain, print};
use crate::identity::{CANVAS_SCOPE, CANVAS_TYP, Role};
use crate::ids::WorkspaceId;
use crate::trust::{
    KeySet, KeySetError, PAIR_TYP, PairClaims, TOKEN_BYTES_MAX, TokenError, TokenHead,
    claimed_audience, own_type, unproven,
};

/// `a2a-gateway token workspace|operator|canvas|pair|inspect|verify`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token of a workspace; needs its own token or an admin token
    Workspace {
        /// The workspace
        id: String,
        /// Name of the token in lists
        #[arg(long)]
        label: Option<String>,
        /// How long it lasts, such as 90days; without it, until it is revoked
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        expires_in: Option<Duration>,
        /// An operator's token, when no other is given
        #[arg(
            long = "admin-token",
            env = "A2A_GATEWAY_ADMIN_TOKEN",
            hide_env_values = true
        )]
        operator: Option<String>,
        #[command(flatten)]
        gateway: Gateway,
    },
    /// Make a token of an operator; needs an admin token of the role `admin`
    Operator {
        /// What its holder may do: read; operate (besides pauses, stops and grants); admin (everything)
        #[arg(long, value_parser = Role::ALL.iter().map(|role| role.as_str()).collect::<Vec<_>>())]
        role: String,
        /// Name of the token in lists and records
        #[arg(long)]
        label: Option<String>,
        /// How long it lasts, such as 90days; without it, until it is revoked
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        expires_in: Option<Duration>,
        /// An operator's token, when no other is given
        #[arg(
            long = "admin-token",
            env = "A2A_GATEWAY_ADMIN_TOKEN",
            hide_env_values = true
        )]
        operator: Option<String>,
        #[command(flatten)]
        gateway: Gateway,
    },
    /// Get a token for a browser user; needs an admin or org token
    Canvas {
        /// Name of the user in audit records and logs
        #[arg(long)]
        user: String,
        /// The org of the workspaces that the user may message
        #[arg(long)]
        org: Option<String>,
        /// Only this workspace; may be given again
        #[arg(long = "workspace", value_name = "ID")]
        workspaces: Vec<String>,
        /// How long it lasts, at most 24h
        #[arg(long, default_value = "1h", value_parser = humantime::parse_duration)]
        ttl: Duration,
        /// An operator's token, when no other is given
        #[arg(
            long = "admin-token",
            env = "A2A_GATEWAY_ADMIN_TOKEN",
            hide_env_values = true
        )]
        operator: Option<String>,
        #[command(flatten)]
        gateway: Gateway,
    },
    /// Get a token to message one target with; needs the calling workspace's token
    Pair {
        /// The workspace that is to be messaged
        target: String,
        #[command(flatten)]
        gateway: Gateway,
    },
    /// Show the content of a token without verifying it; works offline
    Inspect {
        /// The token; `-` reads it from standard input, where other users cannot see it
        jwt: String,
    },
    /// Check a pair or canvas token against the gateway's published keys; exit status 0 or 1
    Verify {
        /// The token; `-` reads it from standard input, where other users cannot see it
        jwt: String,
        /// The workspace that it must be for; without it, any
        #[arg(long, value_name = "ID")]
        audience: Option<String>,
        /// The issuer that it must be from; without it, the gateway's
        #[arg(long)]
        issuer: Option<String>,
        #[command(flatten)]
        gateway: GatewayUrl,
    },
}

#[derive(clap::Args, Debug)]
struct Gateway {
    /// Credential to ask with; better given in the environment, where other users cannot see it
    #[arg(long, env = "A2A_GATEWAY_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    base: GatewayUrl,
}

/// The command failed: there is nothing to print.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Request(RequestError),
    #[error(transparent)]
    BaseUrl(#[from] BaseUrlError),
    #[error("give a credential with --token or in A2A_GATEWAY_TOKEN")]
    NoCredential,
    #[error(
        "the gateway gave no token: a pair token is for a workspace, so ask with a workspace's token"
    )]
    NoToken,
    #[error("that is no signed token: three parts in base64url with dots between them")]
    NoJwt,
    #[error("the token is neither a pair token nor a canvas token of a gateway")]
    OtherType,
    #[error("the token is not valid: {0}")]
    Invalid(#[source] TokenError),
    #[error("the token is not valid: it is signed by a key that this gateway does not publish")]
    OtherKey,
    #[error("the token is not valid: it has another issuer or audience, or lacks a claim")]
    OtherClaims,
    #[error("the token is not valid: it is for {named:?}, and {expected:?} was expected")]
    OtherAudience { named: String, expected: String },
    #[error("what the gateway publishes cannot be used")]
    Keys(#[from] KeySetError),
    #[error("cannot read or print")]
    Io(#[from] io::Error),
}

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        Self::Request(error.into())
    }
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Malformed => Self::NoJwt,
            TokenError::UnknownKey => Self::OtherKey,
            TokenError::Claims => Self::OtherClaims,
            error => Self::Invalid(error),
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    if let Command::Pair { target: id, .. } | Command::Workspace { id, .. } = &arguments.command
        && let Err(error) = WorkspaceId::parse(id)
    {
        complain(&error);
        return ExitCode::from(USAGE);
    }
    let text = block_on(answer(&arguments.command));
    match text.and_then(|text| Ok(print(&format!("{text}\n"))?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            match error {
                Failure::BaseUrl(_) => ExitCode::from(USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Adds the label and the end of a token to a request for it.
fn with_terms(mut wanted: Value, label: Option<&str>, expires_in: Option<Duration>) -> Value {
    if let Some(label) = label {
        wanted["label"] = label.into();
    }
    if let Some(expires_in) = expires_in {
        wanted["expires_in"] = expires_in.as_secs().into();
    }
    wanted
}

async fn answer(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Workspace {
            id,
            label,
            expires_in,
            operator,
            gateway,
        } => {
            let wanted = with_terms(json!({}), label.as_deref(), *expires_in);
            let path = format!("/workspaces/{id}/tokens");
            gateway.issue(operator.as_deref(), &path, &wanted).await
        }
        Command::Operator {
            role,
            label,
            expires_in,
            operator,
            gateway,
        } => {
            let wanted = with_terms(json!({ "role": role }), label.as_deref(), *expires_in);
            let path = "/operators/tokens";
            gateway.issue(operator.as_deref(), path, &wanted).await
        }
        Command::Canvas {
            user,
            org,
            workspaces,
            ttl,
            operator,
            gateway,
        } => {
            let mut wanted = json!({"user": user, "ttl_seconds": ttl.as_secs()});
            if let Some(org) = org {
                wanted["org"] = org.as_str().into();
            }
            if !workspaces.is_empty() {
                wanted["workspaces"] = json!(workspaces);
            }
            gateway
                .issue(operator.as_deref(), "/canvas/tokens", &wanted)
                .await
        }
        Command::Pair { target, gateway } => {
            let registry = Registry::new(gateway.base.resolve()?);
            let path = format!("/registry/discover/{target}");
            let answer = registry.get(&path, Some(gateway.credential()?)).await?;
            token(&answer)
        }
        Command::Inspect { jwt } => {
            let [head, mut claims] = unproven(&read(jwt)?)?;
            for name in ["iat", "nbf", "exp"] {
                if let Some(time) = claims[name].as_u64().and_then(spelled) {
                    claims[name] = time.into();
                }
            }
            Ok(pretty(&json!({"header": head, "claims": claims})))
        }
        Command::Verify {
            jwt,
            audience,
            issuer,
            gateway,
        } => {
            let jwt = read(jwt)?;
            let registry = Registry::new(gateway.resolve()?);
            let about = registry.get("/.well-known/a2a-gateway", None).await?;
            let keys = registry.get("/.well-known/jwks.json", None).await?;
            let keys = KeySet::parse(keys.to_string().as_bytes())?;
            let issuer = issuer.as_deref().or(about["issuer"].as_str());
            verify(&jwt, &keys, issuer.unwrap_or_default(), audience.as_deref())
        }
    }
}

/// Returns the claims, if the token is valid.
fn verify(
    jwt: &str,
    keys: &KeySet,
    issuer: &str,
    audience: Option<&str>,
) -> Result<String, Failure> {
    let claims = match own_type(jwt).as_deref() {
        Some(PAIR_TYP) => {
            let head = TokenHead::own(jwt, PAIR_TYP)?;
            let claimed = claimed_audience(jwt).unwrap_or_default();
            let audience = audience.unwrap_or(&claimed);
            let claims = PairClaims::verify(jwt, &head, keys, issuer, audience);
            json!(claims.map_err(|error| told(error, jwt, audience))?)
        }
        Some(CANVAS_TYP) => {
            let head = TokenHead::own(jwt, CANVAS_TYP)?;
            let key = keys.find(&head).ok_or(TokenError::UnknownKey)?;
            let audience = audience.unwrap_or(issuer);
            let claims = key.verify(jwt, &head, issuer, audience);
            let claims: Value = claims.map_err(|error| told(error, jwt, audience))?;
            if claims["scope"] != CANVAS_SCOPE || !claims["sub"].is_string() {
                return Err(Failure::OtherClaims);
            }
            claims
        }
        Some(_) => return Err(Failure::OtherType),
        None => {
            unproven(jwt)?;
            return Err(Failure::OtherType);
        }
    };
    Ok(pretty(&claims))
}

/// Maps an error, naming the audience if it is the wrong claim. The signature is verified before
/// any claim is read.
fn told(error: TokenError, jwt: &str, expected: &str) -> Failure {
    match claimed_audience(jwt) {
        Some(named) if error == TokenError::Claims && named != expected => Failure::OtherAudience {
            named,
            expected: expected.to_owned(),
        },
        _ => error.into(),
    }
}

impl Gateway {
    /// Asks for a token with the credential, else with that of the operator.
    async fn issue(
        &self,
        operator: Option<&str>,
        path: &str,
        wanted: &Value,
    ) -> Result<String, Failure> {
        let registry = Registry::new(self.base.resolve()?);
        let operator = operator.filter(|token| !token.is_empty());
        let credential = self.credential().or_else(|none| operator.ok_or(none))?;
        token(&registry.post(path, credential, wanted).await?)
    }

    /// Returns the credential, unless it is empty: compose files pass unset variables as empty
    /// strings.
    fn credential(&self) -> Result<&str, Failure> {
        let token = self.token.as_deref().filter(|token| !token.is_empty());
        token.ok_or(Failure::NoCredential)
    }
}

/// Returns the token of a response of the gateway.
fn token(answer: &Value) -> Result<String, Failure> {
    let token = answer["token"].as_str().ok_or(Failure::NoToken)?;
    Ok(token.to_owned())
}

fn read(jwt: &str) -> Result<String, Failure> {
    if jwt != "-" {
        return Ok(jwt.trim().to_owned());
    }
    let mut text = String::new();
    let most = u64::try_from(TOKEN_BYTES_MAX).unwrap_or(u64::MAX) + 2;
    io::stdin().take(most).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// Formats a number of seconds with its time in RFC 3339.
fn spelled(seconds: u64) -> Option<String> {
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    // RFC 3339 cannot express the year 10000.
    (seconds < 253_402_300_800)
        .then(|| format!("{seconds} ({})", humantime::format_rfc3339_seconds(at)))
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
