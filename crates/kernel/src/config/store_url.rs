//! The forms of store URLs. The checks of the configuration and the drivers read them here, so that each problem has
//! one text. Messages never quote a value, since it may hold a password. Errors that only a driver can detect are
//! reported when the stores are opened.

use std::path::PathBuf;

use redis::IntoConnectionInfo as _;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use url::Url;

/// Validates `stores.sql`.
///
/// # Errors
/// Returns the problem, and the form to write instead.
pub(super) fn check_sql(text: &str) -> Result<(), String> {
    match sqlite_path(text)? {
        Some(_) => Ok(()),
        None => PostgresUrl::parse(text).map(drop),
    }
}

/// Validates `stores.shared`.
///
/// # Errors
/// Returns the problem, and the form to write instead.
pub(super) fn check_shared(text: &str) -> Result<(), String> {
    if text == "memory" {
        return Ok(());
    }
    let url = RedisUrl::parse(text)?.url;
    url.into_connection_info()
        .map(drop)
        .map_err(|_| "is not a Redis URL: write \"redis://user:password@host:6379/0\"".to_owned())
}

/// A URL of PostgreSQL.
pub struct PostgresUrl {
    /// The URL of each host, for the driver.
    pub hosts: Vec<Url>,
    /// The file of the password.
    pub password_file: Option<PathBuf>,
}

impl PostgresUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// Returns the problem, and the form to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut hosts, mut password_file) = (Vec::new(), None);
        for text in of_each_host(text) {
            let mut url = parse(&text)?;
            password_file = take_password_file(&mut url)?;
            let sessions = take_parameter(&mut url, "target_session_attrs");
            // What the gateway needs anyway.
            if sessions.is_some_and(|needed| needed != "read-write" && needed != "primary") {
                let problem = "the gateway writes: target_session_attrs is `read-write`, which needs not be written";
                return Err(problem.to_owned());
            }
            if url
                .query_pairs()
                .all(|(name, _)| name != "application_name")
            {
                url.query_pairs_mut()
                    .append_pair("application_name", "a2a-gateway");
            }
            PgConnectOptions::from_url(&url)
                .map_err(|_| "a parameter of the PostgreSQL URL is not understood")?;
            hosts.push(url);
        }
        if hosts.len() > 1
            && hosts
                .iter()
                .any(|url| url.host_str().is_none_or(str::is_empty))
        {
            return Err("a host is empty: write HOST:PORT,HOST:PORT".to_owned());
        }
        Ok(Self {
            hosts,
            password_file,
        })
    }
}

/// A URL of Redis.
pub struct RedisUrl {
    /// The server, or one that stands for it, for the driver.
    pub url: Url,
    /// How the server is found.
    pub form: RedisForm,
    /// The file with the certificates that sign the server's.
    pub issuer_file: Option<String>,
    /// The file of the password.
    pub password_file: Option<PathBuf>,
}

/// How the server of a Redis URL is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisForm {
    /// It is the one of the URL.
    Server,
    /// By sentinels.
    Sentinels {
        /// Host and port of each.
        addresses: Vec<(String, u16)>,
        /// The name under which they know the server.
        service: String,
        /// User and password for them.
        credential: (Option<String>, Option<String>),
    },
    /// By the owner of a key's slot. These nodes of a cluster are asked first.
    Cluster(Vec<(String, u16)>),
}

impl RedisUrl {
    /// Reads a URL: `redis://`, `redis+sentinel://`, `redis+cluster://`, and the same with `rediss` for TLS.
    ///
    /// # Errors
    /// Returns the problem, and the form to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        let (scheme, form) = match scheme.split_once('+') {
            Some((scheme, form)) => (scheme, Some(form)),
            None => (scheme, None),
        };
        if !matches!(scheme, "redis" | "rediss")
            || !matches!(form, None | Some("sentinel" | "cluster"))
        {
            return Err(REDIS_FORMS.to_owned());
        }
        let hosts = of_each_host(&format!("{scheme}://{rest}"));
        if form.is_none() && hosts.len() > 1 {
            return Err(SEVERAL_HOSTS.to_owned());
        }
        let hosts: Vec<Url> = hosts
            .iter()
            .map(|url| parse(url))
            .collect::<Result<_, _>>()?;
        let port = if form == Some("sentinel") {
            26379
        } else {
            6379
        };
        let addresses = hosts.iter().map(|url| {
            let host = url.host_str().unwrap_or_default();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            (host.to_owned(), url.port().unwrap_or(port))
        });
        let addresses: Vec<_> = addresses.collect();
        let mut url = hosts.into_iter().next().ok_or("name at least one host")?;
        if form.is_some() && addresses.iter().any(|(host, _)| host.is_empty()) {
            return Err("a host is empty: write HOST or HOST:PORT".to_owned());
        }
        if url.fragment().is_some() {
            let problem = "must have nothing behind `#`: certificates are always checked; `?sslrootcert=FILE` names \
                           their issuer";
            return Err(problem.to_owned());
        }
        let issuer_file = take_parameter(&mut url, "sslrootcert");
        let password_file = take_password_file(&mut url)?;
        let user = take_parameter(&mut url, "sentinel_username");
        let credential = (user, take_parameter(&mut url, "sentinel_password"));
        let form = match form {
            Some("sentinel") => RedisForm::Sentinels {
                addresses,
                service: take_service(&mut url)?,
                credential,
            },
            Some("cluster") if !matches!(url.path(), "" | "/" | "/0") => {
                return Err("a cluster has only database 0: leave out the path".to_owned());
            }
            Some("cluster") => RedisForm::Cluster(addresses),
            _ => RedisForm::Server,
        };
        Ok(Self {
            url,
            form,
            issuer_file,
            password_file,
        })
    }
}

/// Removes the name of the service from the path, `/SERVICE` or `/SERVICE/DB`.
fn take_service(url: &mut Url) -> Result<String, String> {
    let path = url.path().trim_start_matches('/').to_owned();
    let (service, database) = path.split_once('/').unwrap_or((&path, ""));
    if service.is_empty() {
        return Err(
            "name the service as the sentinels know it: `redis+sentinel://HOST,HOST,HOST/SERVICE`"
                .to_owned(),
        );
    }
    url.set_path(database);
    Ok(service.to_owned())
}

fn take_password_file(url: &mut Url) -> Result<Option<PathBuf>, String> {
    let file = take_parameter(url, "password_file");
    if file.is_some() && url.password().is_some() {
        return Err("give a password or `password_file`, not both".to_owned());
    }
    Ok(file.map(PathBuf::from))
}

/// Removes a parameter that the driver does not know from the query.
fn take_parameter(url: &mut Url, name: &str) -> Option<String> {
    let pairs = url.query_pairs().into_owned();
    let (ours, others): (Vec<_>, Vec<_>) = pairs.partition(|(key, _)| key == name);
    url.set_query(None);
    if !others.is_empty() {
        url.query_pairs_mut().extend_pairs(others);
    }
    ours.into_iter().next().map(|(_, value)| value)
}

/// Parses a URL with one host.
fn parse(text: &str) -> Result<Url, String> {
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

/// Returns the URL of each host that a URL names: `postgres://USER@ONE:5432,TWO:5433/DATABASE` names two.
fn of_each_host(text: &str) -> Vec<String> {
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

const REDIS_FORMS: &str = "must be \"memory\", \"redis://host:6379/0\", \"rediss://host:6379/0\", \
                           \"redis+sentinel://host:26379,host:26379/service\" or \
                           \"redis+cluster://host:6379,host:6379\"";

const SEVERAL_HOSTS: &str = "it names several hosts: write \"redis+sentinel://host:26379,host:26379/service\" with \
                             sentinels, \"redis+cluster://host:6379,host:6379\" for a cluster \
                             (docs/guide/deploy.md)";

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
            assert!(of_each_host(several).len() > 1, "{several}");
        }
        for one in [
            "postgres://u:p,q@a/db,c?d=e,f",
            "redis://:a,b@c:1/0",
            "memory",
        ] {
            assert_eq!(of_each_host(one).len(), 1, "{one}");
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
