//! Tests of meaningless and unsafe values.

use crate::config::load::tests::{refused, set};

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases reads best in one piece"
)]
fn senseless_and_unsafe_values_are_refused() {
    let zeros = [
        "stores.timeout",
        "timeouts.connect",
        "timeouts.head",
        "timeouts.idle",
        "timeouts.total",
        "timeouts.stream",
        "timeouts.request_body",
        "timeouts.max",
        "stream.keepalive",
        "stream.log_ttl",
        "idempotency.ttl",
        "upstream.idle",
        "registry.heartbeat_ttl",
    ];
    for key in zeros {
        refused(set(&[&format!("{key}=0s")]), key, "longer than nothing");
        refused(set(&[&format!("{key}=1000000days")]), key, "at most a year");
    }
    let limits = [
        "limits.request_bytes",
        "limits.response_bytes",
        "limits.stream_bytes",
        "limits.event_bytes",
        "limits.policy_bytes",
        "limits.policy_workspaces",
        "stream.log_bytes",
        "stream.logs_bytes",
        "stream.readers",
        "limits.bodies_bytes",
        "limits.target_concurrency",
        "limits.kept_bytes",
        "limits.kept_bytes_total",
        "server.max_connections",
        "server.max_exchanges",
        "stores.sql_connections",
        "directory.cache_entries",
        "rate.caller_burst",
        "rate.org_users_burst",
    ];
    for key in limits {
        refused(set(&[&format!("{key}=0")]), key, "at least 1");
    }
    for (value, reason) in [
        ("server.public_url=ftp://a.example/", "http:// or https://"),
        (
            "server.public_url=https://u:p@a.example/",
            "user or a password",
        ),
        (
            "server.public_url=https://a.example/?x=1",
            "must end before",
        ),
        ("server.hosts=http://a.example", "is not a host"),
        ("server.threads=5000", "at most"),
        ("stores.sql=mysql://u:geheim@h/d", "sqlite:PATH"),
        ("stores.shared=memcached://h", "\"memory\""),
        ("forward.headers=Authorization", "never passed on"),
        ("forward.headers=X-Forwarded-For", "never passed on"),
        ("forward.headers=a b", "name of a field"),
        ("forward.response_headers=Set-Cookie", "never passes"),
        ("forward.response_headers=X-A2A-Refused", "never passes"),
        (
            "forward.response_headers=X-Accel-Redirect",
            "orders to a proxy",
        ),
        ("forward.response_headers=a b", "name of a field"),
        ("cors.origins=https://a.example/", "is not an origin"),
        ("cors.origins=null", "is not an origin"),
        ("directory.url_key=ws:url", "must hold {id}"),
        (
            "directory.url_key=ws:{id}:internal_url",
            "is the same as directory",
        ),
        ("admin.listen=127.0.0.1:8080", "is taken by server.listen"),
        ("registry.heartbeat_ttl=10ms", "at least 1s"),
        ("telemetry.log=info=what=ever", "log filter"),
        ("telemetry.log=debugg", "`debugg` is not a level"),
        ("telemetry.log=info, access", "`access` is not a level"),
        ("stores.sql=sqlite::memory:", "path of a file"),
        ("stores.sql=postgres://u:geheim@h:port/d", "not a URL"),
        ("stores.sql=postgres://h/d?sslmode=odd", "not understood"),
        ("stores.shared=redis://:geheim@h:port/0", "not a URL"),
        ("stores.shared=redis://h/db", "not a Redis URL"),
        ("stores.shared=rediss://h#insecure", "certificates"),
        ("keys.dir=", "must name a folder"),
        ("tokens.pair_ttl=0s", "must be 10s to 24h"),
        ("limits.bodies_bytes=1MiB", "at least limits.request_bytes"),
        ("limits.control_bodies_bytes=1000KiB", "at least 1MiB"),
    ] {
        refused(set(&[value]), "", reason);
    }
    for filter in [
        "WARN,access=off",
        "info,a2a_gateway::proxy=debug",
        "off",
        "info,[span]=trace",
    ] {
        assert!(
            set(&[&format!("telemetry.log={filter}")]).is_ok(),
            "{filter}"
        );
    }
    // A burst of 0 is allowed while the rate is off.
    assert!(set(&["rate.caller_burst=0", "rate.caller_per_second=0"]).is_ok());
}

#[test]
fn open_mode_needs_a_loopback_listener() {
    assert!(set(&["auth.mode=open"]).is_ok());
    assert!(set(&["auth.mode=open", "server.listen=[::1]:8080"]).is_ok());
    for listen in ["0.0.0.0:8080", "[::]:8080", "192.168.1.5:8080"] {
        let listen = format!("server.listen={listen}");
        refused(
            set(&["auth.mode=open", &listen]),
            "auth.mode (from --set)",
            "loopback",
        );
    }
}
