//! Debian's Prometheus, which scrapes gateways, and its tool.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Connection, Request};
use super::servers::Server;
use super::warm::until_holds;

/// A running Prometheus.
pub(crate) struct Prometheus(Server);

impl Prometheus {
    /// Starts one with the files in `grafana/`, but scrapes `targets`, each second. Waits until it is ready.
    pub(crate) async fn start(targets: &[SocketAddr]) -> Self {
        let grafana = Path::new(env!("CARGO_MANIFEST_DIR")).join("grafana");
        let config = std::fs::read_to_string(grafana.join("prometheus.yaml")).unwrap();
        let targets: Vec<String> = targets.iter().map(|at| format!("\"{at}\"")).collect();
        let config = config.replace("15s", "1s");
        let config = config.replace("\"gateway:9090\"", &targets.join(", "));
        assert!(config.contains(&targets[0]), "{config}");
        let server = Server::start("prometheus", |folder, port| {
            std::fs::write(folder.join("prometheus.yaml"), &config).unwrap();
            std::fs::copy(grafana.join("alerts.yaml"), folder.join("alerts.yaml")).unwrap();
            let file = folder.join("prometheus.yaml").display().to_string();
            let data = folder.join("data").display().to_string();
            vec![
                "prometheus".into(),
                format!("--config.file={file}"),
                format!("--storage.tsdb.path={data}"),
                format!("--web.listen-address=127.0.0.1:{port}"),
                "--enable-feature=exemplar-storage".into(),
            ]
        });
        let is_ready = async || {
            let mut connection = Connection::open(server.address).await;
            connection.call(&Request::get("/-/ready")).await.status == 200
        };
        until_holds("Prometheus is ready", is_ready).await;
        Self(server)
    }

    /// The response at a path of its API.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let mut connection = Connection::open(self.0.address).await;
        let answer = connection.call(&Request::get(path)).await;
        serde_json::from_slice(&answer.body).unwrap_or(Value::Null)
    }

    /// The numbers that an expression has now, one of each series.
    ///
    /// # Errors
    /// Prometheus' message about an invalid expression.
    pub(crate) async fn query(&self, expression: &str) -> Result<Vec<f64>, String> {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let query = query.append_pair("query", expression).finish();
        let answer = self.get(&format!("/api/v1/query?{query}")).await;
        if answer["status"] != "success" {
            return Err(answer.to_string());
        }
        let series = answer["data"]["result"].as_array();
        let series = series.into_iter().flatten();
        let number = |one: &Value| one["value"][1].as_str()?.parse::<f64>().ok();
        Ok(series.filter_map(number).collect())
    }

    /// Waits until the expression has a number that is one.
    pub(crate) async fn await_data(
        &self,
        expression: &str,
        deadline: Instant,
    ) -> Result<(), String> {
        loop {
            let found = self.query(expression).await;
            match found {
                Ok(numbers) if numbers.iter().any(|number| !number.is_nan()) => return Ok(()),
                Err(error) => return Err(error),
                Ok(numbers) if Instant::now() >= deadline => {
                    return Err(format!("no data: {numbers:?}"));
                }
                Ok(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }
}

/// Runs `promtool` in `grafana/`; returns whether it succeeded, and its output.
pub(crate) fn promtool(arguments: &[&str], input: &str) -> (bool, String) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("grafana"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool (install prometheus)");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    // It may write much before it has read all.
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    let _ = writer.join();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}
