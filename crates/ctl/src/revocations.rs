//! `a2a-gateway revocation`: ends what a person, a session, a run or a credential began by now.

use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};

use super::client::{ChangeFlags, ReadFlags, body_of};
use super::failure::Failure;
use super::table::{Table, format_cell, format_cells};

const COLUMNS: Table<'_> = Table {
    columns: "ID=id SUBJECT=subject BEFORE=before ORG=org MADE_BY=created_by EXPIRES=expires_at REASON=reason",
    made: &[("subject", format_subject)],
    none: "nothing is revoked",
};

/// `a2a-gateway revocation create|list`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Revoke what began by now; needs an operator's token (role operate), or an org's
    Create(CreateArguments),
    /// List the revocations in force
    List(ReadFlags),
}

/// `a2a-gateway revocation create`.
#[derive(clap::Args, Debug)]
pub struct CreateArguments {
    #[command(flatten)]
    subject: SubjectArguments,
    /// Why, in up to 256 characters
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    flags: ChangeFlags,
}

/// What is revoked.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct SubjectArguments {
    /// A person, by the issuer and its name there; of the gateway's issuer: a canvas user or a workspace
    #[arg(long, num_args = 2, value_names = ["ISS", "SUB"])]
    root: Option<Vec<String>>,
    /// A session at a provider
    #[arg(long, num_args = 2, value_names = ["ISS", "SID"])]
    session: Option<Vec<String>>,
    /// A run, by the `txn` of its chain tokens
    #[arg(long, value_name = "TXN")]
    run: Option<String>,
    /// A credential, by its id; of a signed token its `jti`
    #[arg(long, value_name = "ID")]
    credential: Option<String>,
}

/// Runs `a2a-gateway revocation`.
pub async fn run(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Create(arguments) => create_revocation(arguments).await,
        Command::List(flags) => {
            let name = Some("revocations");
            flags.show_list("/revocations", &[], name, COLUMNS).await
        }
    }
}

async fn create_revocation(arguments: &CreateArguments) -> Result<String, Failure> {
    let subject = &arguments.subject;
    let pair = |names: &Option<Vec<String>>, second: &str| match names.as_deref() {
        Some([iss, name]) => json!({"iss": iss, second: name}),
        _ => Value::Null,
    };
    let body = body_of(json!({
        "root": pair(&subject.root, "sub"),
        "session": pair(&subject.session, "sid"),
        "run": subject.run,
        "credential": subject.credential,
        "reason": arguments.reason,
    }));
    let flags = &arguments.flags;
    let tell = |made: &Value| {
        let is = flags.dry_run.choose("revoked", "would be revoked");
        let [before] = format_cells(made, ["before"]);
        format!("{is}: {}  what began by {before}", format_subject(made))
    };
    flags.make(Method::POST, "/revocations", &body, tell).await
}

/// Returns what is revoked, in words.
fn format_subject(made: &Value) -> String {
    let subject = made["subject"].as_object();
    let Some((kind, named)) = subject.and_then(|subject| subject.iter().next()) else {
        return String::new();
    };
    match named.as_object() {
        None => format!("{kind} {}", format_cell(named)),
        Some(names) => {
            let names: Vec<_> = names.values().map(format_cell).collect();
            format!("{kind} {}", names.join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_told_in_one_line() {
        for (subject, told) in [
            (
                json!({"root": {"iss": "https://a", "sub": "ada"}}),
                "root https://a ada",
            ),
            (json!({"run": "q7"}), "run q7"),
            (json!(null), ""),
        ] {
            assert_eq!(format_subject(&json!({"subject": subject})), told);
        }
    }
}
