//! Ports for servers that other programs start.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// An address that is free now, each time another one, as of [`free_listener`].
pub(crate) fn free_address(host: &str) -> SocketAddr {
    free_listener(host).local_addr().expect("bound")
}

/// A listener at a port of its own. It is below the ephemeral range, so that no other program gets it, also when
/// nothing listens there any more.
pub(crate) fn free_listener(host: &str) -> TcpListener {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        // Far from the range of a process that began a moment before or after.
        let spread = std::process::id().wrapping_mul(7919) % 20_000;
        let offset = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(12_000 + (spread + offset) % 20_000).expect("a port");
        if let Ok(listener) = TcpListener::bind((host, port)) {
            return listener;
        }
    }
}
