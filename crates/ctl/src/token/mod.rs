//! `a2a-gateway token`: makes, lists and revokes stored tokens at a running gateway, requests signed ones, inspects and
//! verifies them.

mod stored;

use std::time::{Duration, UNIX_EPOCH};

use clap::Subcommand;
use gateway_client::Registry;
use serde_json::{Value, json};

use super::access::{CallerAccess, GatewayUrl, OperatorAccess};
use super::client::{body_of, path_of};
use super::complete;
use super::failure::{Failure, OrFail as _};
use super::table::format_json;
use super::terminal::read_input;
use super::token_file::TokenOutput;
use trust::{
    CANVAS_SCOPE, CANVAS_TYP, KeySet, LEEWAY_SECONDS, PAIR_TYP, PairClaims, TOKEN_BYTES_MAX,
    TokenError, TokenHead, claimed_audience, decode_unverified, own_type,
};

/// `a2a-gateway token create|list|revoke|print|workspace|operator|canvas|pair|inspect|verify`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a token of a workspace or an org, or an enrolment token; needs an admin token, or the workspace's own
    Create(stored::CreateArguments),
    /// List the live tokens of a workspace, an org or operators, without their secrets
    List(stored::ListArguments),
    /// Revoke a token: it ends on every replica within 1 s
    Revoke(stored::RevokeArguments),
    /// Print the token that commands send, for programs such as curl
    Print {
        /// The gateway to ask, and as which caller
        #[command(flatten)]
        caller: CallerAccess,
    },
    /// Make a token of a workspace, as `create`; needs its own token or an admin token
    Workspace {
        /// The workspace
        #[arg(add = complete::by_workspace())]
        id: String,
        /// Name of the token in lists
        #[arg(long)]
        label: Option<String>,
        /// How long it lasts, such as 90days; without it, until it is revoked
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        expires_in: Option<Duration>,
        /// The gateway to ask
        #[command(flatten)]
        gateway: OperatorAccess,
    },
    /// Make a token of an operator; needs an operator's token of the role `admin`
    Operator(stored::OperatorArguments),
    /// Get a token for a browser user; needs an admin or org token
    Canvas(stored::CanvasArguments),
    /// Get a token to message one target with; needs the calling workspace's token
    Pair {
        /// The workspace that is to be messaged
        #[arg(add = complete::by_workspace())]
        target: String,
        /// The gateway to ask, and as which caller
        #[command(flatten)]
        caller: CallerAccess,
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
        /// The gateway to ask
        #[command(flatten)]
        gateway: GatewayUrl,
    },
}

/// The token has another form than those of a gateway.
const OTHER_TYPE: &str = "the token is neither a pair token nor a canvas token of a gateway";

/// The gateway's answer has no token.
const NO_TOKEN: &str =
    "the gateway gave no token: a pair token is for a workspace, so ask with a workspace's token";

/// Runs `a2a-gateway token`.
pub async fn run(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Create(arguments) => stored::create_token(arguments).await,
        Command::List(arguments) => stored::list_tokens(arguments).await,
        Command::Revoke(arguments) => stored::revoke_token(arguments).await,
        Command::Operator(arguments) => stored::create_operator_token(arguments).await,
        Command::Canvas(arguments) => stored::create_canvas_token(arguments).await,
        Command::Workspace {
            id,
            label,
            expires_in,
            gateway,
        } => {
            let body = json!({"label": label, "expires_in": expires_in.map(|span| span.as_secs())});
            let path = path_of("workspaces", id, "/tokens")?;
            stored::make_token(&path, &body_of(body), &TokenOutput::default(), gateway).await
        }
        Command::Print { caller } => Ok(format!("{}\n", client_with_token(caller)?.1)),
        Command::Pair { target, caller } => {
            let path = path_of("registry/discover", target, "")?;
            let (client, _) = client_with_token(caller)?;
            let answer = client.get(&path, &[]).await?;
            let token = answer["token"].as_str();
            let token = token.ok_or_else(|| Failure::new(NO_TOKEN))?;
            Ok(format!("{token}\n"))
        }
        Command::Inspect { jwt } => inspect_token(&read_jwt(jwt)?),
        Command::Verify {
            jwt,
            audience,
            issuer,
            gateway,
        } => {
            let jwt = read_jwt(jwt)?;
            let client = gateway.build_anonymous()?;
            let about = client.get("/.well-known/a2a-gateway", &[]).await?;
            let keys = client.get("/.well-known/jwks.json", &[]).await?;
            let keys = KeySet::parse(keys.to_string().as_bytes());
            let keys = keys.or_fail("what the gateway publishes cannot be used")?;
            let issuer = issuer.as_deref().or(about["issuer"].as_str());
            verify_token(&jwt, &keys, issuer.unwrap_or_default(), audience.as_deref())
        }
    }
}

/// Returns a client and its token.
fn client_with_token(caller: &CallerAccess) -> Result<(Registry, String), Failure> {
    let client = caller.build_client()?;
    let token = client.token.clone().ok_or_else(|| {
        Failure::new(
            "give a credential with --token, in A2A_GATEWAY_TOKEN or by a context (`a2a-gateway login`)",
        )
    })?;
    Ok((client, token))
}

/// Returns head and claims of a token, its times spelled out. Verifies nothing.
fn inspect_token(jwt: &str) -> Result<String, Failure> {
    let [head, mut claims] = decode_unverified(jwt).map_err(to_failure)?;
    for name in ["iat", "nbf", "exp"] {
        if let Some(time) = claims[name].as_u64().and_then(format_time) {
            claims[name] = time.into();
        }
    }
    Ok(format_json(&json!({"header": head, "claims": claims})))
}

/// Returns the claims, if the token is valid.
fn verify_token(
    jwt: &str,
    keys: &KeySet,
    issuer: &str,
    audience: Option<&str>,
) -> Result<String, Failure> {
    let claimed = claimed_audience(jwt);
    let kind = own_type(jwt);
    let (claims, expected) = match kind.as_deref() {
        Some(PAIR_TYP) => {
            let head = TokenHead::parse_own(jwt, PAIR_TYP).map_err(to_failure)?;
            let audience = audience.or(claimed.as_deref()).unwrap_or_default();
            let claims = PairClaims::verify(jwt, &head, keys, issuer, audience);
            (claims.map(|claims| json!(claims)), audience)
        }
        Some(CANVAS_TYP) => {
            let head = TokenHead::parse_own(jwt, CANVAS_TYP).map_err(to_failure)?;
            let key = keys.find(&head).ok_or(TokenError::UnknownKey);
            let key = key.map_err(to_failure)?;
            let audience = audience.unwrap_or(issuer);
            let claims = key.verify::<Value>(jwt, &head, LEEWAY_SECONDS, issuer, audience);
            (claims, audience)
        }
        _ => {
            decode_unverified(jwt).map_err(to_failure)?;
            return Err(Failure::new(OTHER_TYPE));
        }
    };
    // The signature is verified before any claim is read.
    let claims = claims.map_err(|error| match &claimed {
        Some(named) if error == TokenError::Claims && named != expected => Failure::new(format!(
            "the token is not valid: it is for {named:?}, and {expected:?} was expected"
        )),
        _ => to_failure(error),
    })?;
    let is_canvas = kind.as_deref() == Some(CANVAS_TYP);
    if is_canvas && (claims["scope"] != CANVAS_SCOPE || !claims["sub"].is_string()) {
        return Err(to_failure(TokenError::Claims));
    }
    Ok(format_json(&claims))
}

fn to_failure(error: TokenError) -> Failure {
    let why = match error {
        TokenError::Malformed => {
            let complaint =
                "that is no signed token: three parts in base64url with dots between them";
            return Failure::new(complaint);
        }
        TokenError::UnknownKey => "it is signed by a key that this gateway does not publish",
        TokenError::Claims => "it has another issuer or audience, or lacks a claim",
        error => return Failure::new(format!("the token is not valid: {error}")),
    };
    Failure::new(format!("the token is not valid: {why}"))
}

fn read_jwt(jwt: &str) -> Result<String, Failure> {
    let text = match jwt {
        "-" => read_input(TOKEN_BYTES_MAX as u64 + 2)?,
        jwt => jwt.to_owned(),
    };
    Ok(text.trim().to_owned())
}

/// Formats a number of seconds with its time in RFC 3339.
fn format_time(seconds: u64) -> Option<String> {
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    // RFC 3339 cannot express the year 10000.
    (seconds < 253_402_300_800)
        .then(|| format!("{seconds} ({})", humantime::format_rfc3339_seconds(at)))
}
