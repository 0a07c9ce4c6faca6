//! A DNS server that answers as a case specifies, and counts queries.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;

/// The answer to the `number`th look-up of a name, counted from 0. One look-up queries both kinds of
/// addresses.
type Zone = dyn Fn(&str, usize) -> Vec<IpAddr> + Send + Sync;

/// Among the addresses of a name: no response is sent.
pub(crate) const SILENCE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A running server. Dropping it stops it.
pub(crate) struct Dns {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<(String, u16)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.task.abort();
    }
}

const A: u16 = 1;
const AAAA: u16 = 28;

impl Dns {
    pub(crate) async fn start(
        zone: impl Fn(&str, usize) -> Vec<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let address = socket.local_addr().expect("bound");
        let asked = Arc::<Mutex<Vec<(String, u16)>>>::default();
        let seen = Arc::clone(&asked);
        let zone: Box<Zone> = Box::new(zone);
        let task = tokio::spawn(async move {
            let mut query = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut query).await {
                let Some((name, kind, end)) = question(&query[..length]) else {
                    continue;
                };
                let number = {
                    let mut seen = seen.lock().expect("not poisoned");
                    let same = |(n, k): &&(String, u16)| *n == name && *k == kind;
                    let number = seen.iter().filter(same).count();
                    seen.push((name.clone(), kind));
                    number
                };
                let addresses = zone(&name, number);
                if addresses.contains(&SILENCE) {
                    continue;
                }
                let answer = answer(&query[..end], kind, &addresses);
                let _ = socket.send_to(&answer, from).await;
            }
        });
        Self {
            address,
            asked,
            task,
        }
    }

    /// The number of queries for IPv4 addresses of `name`.
    pub(crate) fn lookups(&self, name: &str) -> usize {
        let asked = self.asked.lock().expect("not poisoned");
        asked.iter().filter(|(n, k)| n == name && *k == A).count()
    }
}

/// Parses the name, the type, and the end of the question (RFC 1035, 4.1.2).
fn question(query: &[u8]) -> Option<(String, u16, usize)> {
    let mut at = 12;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        let label = query.get(at..at + length)?;
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at += length;
    }
    let kind = u16::from_be_bytes([*query.get(at)?, *query.get(at + 1)?]);
    Some((labels.join("."), kind, at + 4))
}

fn answer(question: &[u8], kind: u16, addresses: &[IpAddr]) -> Vec<u8> {
    let fitting: Vec<&IpAddr> = addresses
        .iter()
        .filter(|address| kind == if address.is_ipv4() { A } else { AAAA })
        .collect();
    let mut answer = question.to_vec();
    // An answer, recursion desired and available, no error; one question.
    answer[2..4].copy_from_slice(&[0x81, 0x80]);
    let count = u8::try_from(fitting.len()).expect("a few");
    answer[4..12].copy_from_slice(&[0, 1, 0, count, 0, 0, 0, 0]);
    for address in fitting {
        // The name of the question, class IN, no time to live.
        answer.extend_from_slice(&[0xc0, 12]);
        answer.extend_from_slice(&kind.to_be_bytes());
        answer.extend_from_slice(&[0, 1, 0, 0, 0, 0]);
        let bytes = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let length = u16::try_from(bytes.len()).expect("4 or 16");
        answer.extend_from_slice(&length.to_be_bytes());
        answer.extend_from_slice(&bytes);
    }
    answer
}
