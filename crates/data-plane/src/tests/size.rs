//! The size of the future that an exchange takes. Each open stream holds one.

use pingora::protocols::http::ServerSession;

use super::*;

/// Maximum bytes of the future of one request.
const REQUEST_MAX: usize = 10 * 1024;

#[tokio::test]
async fn the_future_of_a_request_stays_small() {
    let gateway = TestGateway::new(unary_answer("{}"), |_| ()).await;
    let (_caller, stream) = duplex(1024);
    let session = Box::new(ServerSession::new_http1(Box::new(stream)));
    let request = gateway.listener.serve_request(session);
    let size = size_of_val(&request);
    assert!(size <= REQUEST_MAX, "{size} bytes");
}
