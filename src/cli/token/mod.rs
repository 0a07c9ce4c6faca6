//! `a2a-gateway token`: makes, lists and revokes stored tokens at a running gateway, requests signed ones, inspects and
//! verifies them.

mod canvas;
mod stored;

use std::io::{self, Read as _};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;
use gateway_client::{Registry, RegistryError};
use serde_json::{Value, json};

use super::access::{AccessError, GatewayUrl, OperatorAccess};
use super::client::{RequestError, run as run_to_end};
use super::{USAGE, block_on, complete, print, print_error};
use crate::identity::{CANVAS_SCOPE, CANVAS_TYP};
use crate::ids::WorkspaceId;
use crate::trust::{
    KeySet, KeySetError, LEEWAY_SECONDS, PAIR_TYP, PairClaims, TOKEN_BYTES_MAX, TokenError,
    TokenHead, claimed_audience, decode_unverified, own_type,
};

const EXAMPLES: &str = "\
Examples:
  a2a-gateway token create acme-dev --label laptop --expires-in 90days
  a2a-gateway token list acme-dev
  a2a-gateway token operator --role operate --label 'night shift' --token-file night-token
  a2a-gateway token canvas --user ada --org acme
  a2a-gateway token inspect - < signed-token";

const WORKSPACE_EXAMPLES: &str = "\
Examples:
  a2a-gateway token workspace acme-dev --label laptop      as `token create`";

const PAIR_EXAMPLES: &str = "\
Examples:
  A2A_GATEWAY_TOKEN=$(cat agent-token) a2a-gateway token pair acme-dev";

const INSPECT_EXAMPLES: &str = "\
Examples:
  a2a-gateway token inspect - < signed-token";

const VERIFY_EXAMPLES: &str = "\
Examples:
  a2a-gateway token verify - < signed-token
  a2a-gateway token verify - --audience acme-dev < signed-token";

/// `a2a-gateway token create|list|revoke|workspace|operator|canvas|pair|inspect|verify`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token of a workspace or an org, or an enrolment token; needs an admin token, or the workspace's own
    #[command(after_help = stored::CREATE_EXAMPLES)]
    Create(stored::CreateArguments),
    /// List the live tokens of a workspace, an org or operators, without their secrets
    #[command(after_help = stored::LIST_EXAMPLES)]
    List(stored::ListArguments),
    /// Revoke a token: it ends on every replica within 1 s
    #[command(after_help = stored::REVOKE_EXAMPLES)]
    Revoke(stored::RevokeArguments),
    /// Make a token of a workspace, as `create`; needs its own token or an admin token
    #[command(after_help = WORKSPACE_EXAMPLES)]
    Workspace {
        /// The workspace
        #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
        id: String,
        /// Name of the token in lists
        #[arg(long)]
        label: Option<String>,
        /// How long it lasts, such as 90days; without it, until it is revoked
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        expires_in: Option<Duration>,
        #[command(flatten)]
        gateway: OperatorAccess,
    },
    /// Make a token of an operator; needs an operator's token of the role `admin`
    #[command(after_help = stored::OPERATOR_EXAMPLES)]
    Operator(stored::OperatorArguments),
    /// Get a token for a browser user; needs an admin or org token
    #[command(after_help = canvas::EXAMPLES)]
    Canvas(canvas::CanvasArguments),
    /// Get a token to message one target with; needs the calling workspace's token
    #[command(after_help = PAIR_EXAMPLES)]
    Pair {
        /// The workspace that is to be messaged
        #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
        target: String,
        /// Credential to ask with [env: A2A_GATEWAY_TOKEN]; better given there, where other users cannot see it
        #[arg(long)]
        token: Option<String>,
        #[command(flatten)]
        gateway: GatewayUrl,
    },
    /// Show the content of a token without verifying it; works offline
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect {
        /// The token; `-` reads it from standard input, where other users cannot see it
        jwt: String,
    },
    /// Check a pair or canvas token against the gateway's published keys; exit status 0 or 1
    #[command(after_help = VERIFY_EXAMPLES)]
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

/// The command failed: there is nothing to print.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Request(RequestError),
    #[error(transparent)]
    Access(#[from] AccessError),
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
    match &arguments.command {
        Command::Create(arguments) => return run_to_end(stored::create_token(arguments)),
        Command::List(arguments) => return run_to_end(stored::list_tokens(arguments)),
        Command::Revoke(arguments) => return run_to_end(stored::revoke_token(arguments)),
        Command::Operator(arguments) => {
            return run_to_end(stored::create_operator_token(arguments));
        }
        Command::Canvas(arguments) => return run_to_end(canvas::create_canvas_token(arguments)),
        _ => {}
    }
    if let Command::Pair { target: id, .. } | Command::Workspace { id, .. } = &arguments.command
        && let Err(error) = WorkspaceId::parse(id)
    {
        print_error(&error);
        return ExitCode::from(USAGE);
    }
    let text = block_on(run_command(&arguments.command));
    match text.and_then(|text| Ok(print(&format!("{text}\n"))?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            match error {
                Failure::Access(AccessError::NoCredential) => ExitCode::FAILURE,
                Failure::Access(_) => ExitCode::from(USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

async fn run_command(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Create(_)
        | Command::List(_)
        | Command::Revoke(_)
        | Command::Operator(_)
        | Command::Canvas(_) => Ok(String::new()),
        Command::Workspace {
            id,
            label,
            expires_in,
            gateway,
        } => {
            let wanted = stored::request_body(label.as_deref(), *expires_in);
            let path = format!("/workspaces/{id}/tokens");
            extract_token(&gateway.build_client()?.post(&path, &wanted).await?)
        }
        Command::Pair {
            target,
            token: given,
            gateway,
        } => {
            let (url, credential) = gateway.resolve(&[given], false)?;
            let credential = credential.ok_or(Failure::NoCredential)?;
            let path = format!("/registry/discover/{target}");
            extract_token(&Registry::new(url).get(&path, Some(&credential)).await?)
        }
        Command::Inspect { jwt } => inspect_token(&read_jwt(jwt)?),
        Command::Verify {
            jwt,
            audience,
            issuer,
            gateway,
        } => {
            let jwt = read_jwt(jwt)?;
            let registry = Registry::new(gateway.resolve_endpoint()?.url);
            let about = registry.get("/.well-known/a2a-gateway", None).await?;
            let keys = registry.get("/.well-known/jwks.json", None).await?;
            let keys = KeySet::parse(keys.to_string().as_bytes())?;
            let issuer = issuer.as_deref().or(about["issuer"].as_str());
            verify_token(&jwt, &keys, issuer.unwrap_or_default(), audience.as_deref())
        }
    }
}

/// Returns head and claims of a token, its times spelled out. Verifies nothing.
fn inspect_token(jwt: &str) -> Result<String, Failure> {
    let [head, mut claims] = decode_unverified(jwt)?;
    for name in ["iat", "nbf", "exp"] {
        if let Some(time) = claims[name].as_u64().and_then(format_time) {
            claims[name] = time.into();
        }
    }
    Ok(format_pretty(&json!({"header": head, "claims": claims})))
}

/// Returns the claims, if the token is valid.
fn verify_token(
    jwt: &str,
    keys: &KeySet,
    issuer: &str,
    audience: Option<&str>,
) -> Result<String, Failure> {
    let claims = match own_type(jwt).as_deref() {
        Some(PAIR_TYP) => {
            let head = TokenHead::parse_own(jwt, PAIR_TYP)?;
            let claimed = claimed_audience(jwt).unwrap_or_default();
            let audience = audience.unwrap_or(&claimed);
            let claims = PairClaims::verify(jwt, &head, keys, issuer, audience);
            json!(claims.map_err(|error| to_failure(error, jwt, audience))?)
        }
        Some(CANVAS_TYP) => {
            let head = TokenHead::parse_own(jwt, CANVAS_TYP)?;
            let key = keys.find(&head).ok_or(TokenError::UnknownKey)?;
            let audience = audience.unwrap_or(issuer);
            let claims = key.verify(jwt, &head, LEEWAY_SECONDS, issuer, audience);
            let claims: Value = claims.map_err(|error| to_failure(error, jwt, audience))?;
            if claims["scope"] != CANVAS_SCOPE || !claims["sub"].is_string() {
                return Err(Failure::OtherClaims);
            }
            claims
        }
        Some(_) => return Err(Failure::OtherType),
        None => {
            decode_unverified(jwt)?;
            return Err(Failure::OtherType);
        }
    };
    Ok(format_pretty(&claims))
}

/// Maps an error, naming the audience if it is the wrong claim. The signature is verified before
/// any claim is read.
fn to_failure(error: TokenError, jwt: &str, expected: &str) -> Failure {
    match claimed_audience(jwt) {
        Some(named) if error == TokenError::Claims && named != expected => Failure::OtherAudience {
            named,
            expected: expected.to_owned(),
        },
        _ => error.into(),
    }
}

/// Returns the token of a response of the gateway.
fn extract_token(answer: &Value) -> Result<String, Failure> {
    let token = answer["token"].as_str().ok_or(Failure::NoToken)?;
    Ok(token.to_owned())
}

fn read_jwt(jwt: &str) -> Result<String, Failure> {
    if jwt != "-" {
        return Ok(jwt.trim().to_owned());
    }
    let mut text = String::new();
    let most = u64::try_from(TOKEN_BYTES_MAX).unwrap_or(u64::MAX) + 2;
    io::stdin().take(most).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// Formats a number of seconds with its time in RFC 3339.
fn format_time(seconds: u64) -> Option<String> {
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    // RFC 3339 cannot express the year 10000.
    (seconds < 253_402_300_800)
        .then(|| format!("{seconds} ({})", humantime::format_rfc3339_seconds(at)))
}

fn format_pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
