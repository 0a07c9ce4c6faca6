//! The forms of store URLs. [`check_sql`] and [`check_shared`] validate them without opening a store; the drivers use the rest, so
//! that each problem has one text. Messages never quote a value, since it may hold a password. Errors that only a driver
//! can detect are reported when the stores are opened.

use redis::IntoConnectionInfo as _;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use url::Url;

/// Validates `stores.sql`.
///
/// # Errors
/// Returns the problem, and the form to write instead.
pub(super) fn check_sql(text: &str) -> Result<(), String> {
    if sqlite_path(text)?.is_some() {
        return Ok(());
    }
    of_each_host(text).iter().try_for_each(|host| {
        let mut url = parse(host)?;
        remove_our_parameters(&mut url);
        check_postgres(&url)
    })
}

/// Removes the parameters that the gateway reads itself: the driver warns of those that it does not know.
fn remove_our_parameters(url: &mut Url) {
    let is_ours = |name: &str| matches!(name, "password_file" | "target_session_attrs");
    let pairs = url.query_pairs().into_owned();
    let others: Vec<_> = pairs.filter(|(name, _)| !is_ours(name)).collect();
    url.query_pairs_mut().clear().extend_pairs(others);
}

/// Validates `stores.shared`.
///
/// # Errors
/// Returns the problem, and the form to write instead.
pub(super) fn check_shared(text: &str) -> Result<(), String> {
    if text == "memory" {
        return Ok(());
    }
    let (form, url) = redis_form(text)?;
    if form != RedisForm::Server {
        return of_each_host(&url)
            .iter()
            .try_for_each(|host| check_fragment(&parse(host)?));
    }
    if names_several_hosts(text) {
        return Err(SEVERAL_HOSTS.to_owned());
    }
    let mut url = parse(text)?;
    check_fragment(&url)?;
    url.set_query(None);
    url.into_connection_info()
        .map(drop)
        .map_err(|_| "is not a Redis URL: write \"redis://user:password@host:6379/0\"".to_owned())
}

/// Parses a URL with one host.
///
/// # Errors
/// Returns the problem.
pub fn parse(text: &str) -> Result<Url, String> {
    Url::parse(text).map_err(|error| {
        format!("is not a URL ({error}); percent-encode special characters in the password")
    })
}

/// Returns the path of the SQLite file that `stores.sql` names. `None`: it is a URL of PostgreSQL.
///
/// # Errors
/// Returns the problem, and the form to write instead.
pub fn sqlite_path(text: &str) -> Result<Option<&str>, String> {
    if let Some(rest) = text.strip_prefix("sqlite:") {
        let path = rest.strip_prefix("//").unwrap_or(rest);
        if path.is_empty() || path == ":memory:" || path.contains('?') {
            let problem = "SQLite needs the path of a file and takes no parameters: write \
                           \"sqlite:data/gateway.db\"";
            return Err(problem.to_owned());
        }
        return Ok(Some(path));
    }
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        return Ok(None);
    }
    Err("must be \"sqlite:PATH\" or \"postgres://user:password@host/database\"".to_owned())
}

/// Checks that the driver understands the URL of one PostgreSQL host.
///
/// # Errors
/// Returns the problem.
pub fn check_postgres(url: &Url) -> Result<(), String> {
    PgConnectOptions::from_url(url)
        .map(drop)
        .map_err(|_| "a parameter of the PostgreSQL URL is not understood".to_owned())
}

/// Checks that the URL of a Redis server has no `#insecure`.
///
/// # Errors
/// Returns the problem, and the form to write instead.
pub fn check_fragment(url: &Url) -> Result<(), String> {
    if url.fragment().is_none() {
        return Ok(());
    }
    let problem = "must have nothing behind `#`: certificates are always checked; `?sslrootcert=FILE` \
                   names their issuer";
    Err(problem.to_owned())
}

/// Servers that the hosts of a Redis URL are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisForm {
    /// The server itself.
    Server,
    /// Sentinels, which name the server.
    Sentinels,
    /// Nodes of a cluster.
    Cluster,
}

/// Returns the form of a Redis URL, and the URL without it: `redis://…` or `rediss://…`.
///
/// # Errors
/// Returns the known forms.
pub fn redis_form(text: &str) -> Result<(RedisForm, String), String> {
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    let (scheme, form) = match scheme.split_once('+') {
        None => (scheme, Some(RedisForm::Server)),
        Some((scheme, "sentinel")) => (scheme, Some(RedisForm::Sentinels)),
        Some((scheme, "cluster")) => (scheme, Some(RedisForm::Cluster)),
        Some((scheme, _)) => (scheme, None),
    };
    match form {
        Some(form) if matches!(scheme, "redis" | "rediss") => {
            Ok((form, format!("{scheme}://{rest}")))
        }
        _ => Err(REDIS_FORMS.to_owned()),
    }
}

/// Returns the URL of each host that a URL names: `postgres://USER@ONE:5432,TWO:5433/DATABASE` names two.
pub fn of_each_host(text: &str) -> Vec<String> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return vec![text.to_owned()];
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let one = |host: &str| format!("{scheme}://{user}{host}{path}");
    hosts.split(',').map(one).collect()
}

fn names_several_hosts(url: &str) -> bool {
    of_each_host(url).len() > 1
}

const REDIS_FORMS: &str = "must be \"memory\", \"redis://host:6379/0\", \"rediss://host:6379/0\", \
                           \"redis+sentinel://host:26379,host:26379/service\" or \
                           \"redis+cluster://host:6379,host:6379\"";

const SEVERAL_HOSTS: &str = "it names several hosts: write \"redis+sentinel://host:26379,host:26379/service\" with \
                             sentinels, \"redis+cluster://host:6379,host:6379\" for a cluster \
                             (docs/guide/connect-the-stores.md)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_hosts_are_seen_and_commas_elsewhere_are_not() {
        for several in [
            "postgres://u:p@a,b/db",
            "postgres://u:p@a:5432,b:5433/db?x=y",
            "redis://a:1,b:2",
        ] {
            assert!(names_several_hosts(several), "{several}");
        }
        for one in [
            "postgres://u:p,q@a/db,c?d=e,f",
            "redis://:a,b@c:1/0",
            "memory",
        ] {
            assert!(!names_several_hosts(one), "{one}");
        }
    }

    #[test]
    fn each_host_has_a_url_with_all_else() {
        let text = "postgres://user:pa%2Css@one,two:5433/gateway?sslmode=require";
        assert_eq!(
            of_each_host(text),
            [
                "postgres://user:pa%2Css@one/gateway?sslmode=require",
                "postgres://user:pa%2Css@two:5433/gateway?sslmode=require",
            ]
        );
        for good in [text, "postgres://one,two/a?target_session_attrs=read-write"] {
            assert_eq!(check_sql(good), Ok(()), "{good}");
        }
        for good in [
            "redis+sentinel://:p@one,two:1/main",
            "rediss+sentinel://one/main/1",
            "redis+cluster://:p@one,two:7001",
        ] {
            assert_eq!(check_shared(good), Ok(()), "{good}");
        }
        for bad in [
            "redis://one,two",
            "http+sentinel://one/main",
            "redis+sentinel://one:x/main",
            "redis+shard://one",
            "redis",
            "rediss+cluster://one#insecure",
        ] {
            assert!(check_shared(bad).is_err(), "{bad}");
        }
    }
}
