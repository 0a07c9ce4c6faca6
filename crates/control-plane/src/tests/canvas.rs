//! The canvas: served only if enabled, and the same for all users.

use serde_json::Value;

use super::House;

#[tokio::test]
async fn the_canvas_is_there_only_where_it_is_enabled() {
    let [without, with] =
        [false, true].map(|enabled| House::new(move |config| config.canvas.enabled = enabled));
    let (without, with) = (without.await, with.await);
    for (path, status) in [
        ("/canvas", 308),
        ("/canvas/", 200),
        ("/canvas/canvas.js", 200),
        ("/canvas/tokens.css", 200),
        ("/canvas/nothing.js", 404),
        ("/canvas/manifest.json", 404),
    ] {
        let reply = without.get(path, "").await;
        assert_eq!((reply.status.as_u16(), reply.reason()), (404, "not_found"));
        for token in ["", "rubbish"] {
            let reply = with.get(path, token).await;
            assert_eq!(reply.status, status, "{path}");
            if status == 200 {
                let policy = reply.headers["content-security-policy"].to_str().unwrap();
                assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
                assert_eq!(reply.headers["cache-control"], "no-cache", "{path}");
            }
        }
    }
    let reply = with.get("/canvas", "").await;
    assert_eq!(reply.headers["location"], "canvas/");
    let refused = with.call("POST", "/canvas/", "", Value::Null).await;
    assert_eq!(refused.reason(), "method_not_allowed");
}
