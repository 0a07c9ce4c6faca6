//! What ends a platform's token before its time: the issuer's keys, its rules, the workspace.

use super::*;
use crate::reload::{Written, shows};

const OFF: &str = "[rate]\ncaller_per_second = 0\nfailures_per_second = 0\n";

fn written(issuer: &Issuer, subject: &str) -> String {
    let table = issuer.table();
    format!(
        "{OFF}[[auth.workspace_issuers]]\nissuer = {}\njwks_url = {}\naudience = {}\nclaims = {{ sub = \"{subject}\" }}\n\
         workspace = \"{{name}}\"\n",
        table["issuer"], table["jwks_url"], table["audience"]
    )
}

async fn is_cut(mut socket: Socket) {
    let (code, reason) = loop {
        if let Err(closed) = socket.next().await {
            break closed;
        }
    };
    assert_eq!(code, 4401, "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_rotate_and_a_withdrawn_one_proves_no_workspace() {
    let (old, new) = (Key::rsa("old"), Key::rsa("new"));
    let issuer = Issuer::start(CLUSTER, &[&old]).await;
    let (gateway, _agent) = with(Pair::Embedded, &[platform(&issuer, kubernetes())]).await;
    let of = |key: &Key| account_token(key, &claims("acme", "dev"));
    let known = of(&old);
    until(&gateway, || call("target", &known), 200).await;
    let of_new = call("target", &of(&new));
    refused(&gateway, &of_new, 401, "does not publish").await;
    // Both for a while, as an API server publishes them.
    issuer.publish(&[&old, &new]);
    until(&gateway, || call("target", &of(&new)), 200).await;
    ok(&gateway, &call("target", &known)).await;
    issuer.publish(&[&new]);
    // A token of an unknown key has them fetched again.
    let unknown = of(&Key::rsa("unknown"));
    until_holds("the old key counts no more", async || {
        assert_eq!(gateway.call(&call("target", &unknown)).await.status, 401);
        gateway.call(&call("target", &known)).await.status == 401
    })
    .await;
    ok(&gateway, &call("target", &of(&new))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_other_rules_go_the_sockets_and_tickets_of_the_old_ones() {
    let key = Key::rsa("k8s-1");
    let issuer = Issuer::start(CLUSTER, &[&key]).await;
    let file = Written::new(&written(&issuer, "system:serviceaccount:acme:{name}"));
    let builder = Builder::new(Pair::Embedded).file(file.path());
    let gateway = builder.set("stores.timeout", "20s").start().await;
    gateway.create(json!({"id": "dev", "name": "dev"})).await;
    let token = account_token(&key, &claims("acme", "dev"));
    let of_globex = account_token(&key, &claims("globex", "dev"));
    let read = |token: &str| Request::get("/workspaces/dev").bearer(token);
    until(&gateway, || read(&token), 200).await;
    refused(&gateway, &read(&of_globex), 401, "do not match").await;
    let ticket = async || handshake(&format!("/ws?ticket={}", ticket(&gateway, &token).await));
    let by_token = Socket::open(gateway.public, &handshake("/ws").bearer(&token)).await;
    let by_ticket = Socket::open(gateway.public, &ticket().await).await;
    let unused = ticket().await;
    file.save(&written(&issuer, "system:serviceaccount:globex:{name}"));
    let has_globex = |config: &Value| config.to_string().contains(":globex:");
    shows(&gateway, "the new rules", has_globex).await;
    is_cut(by_token).await;
    is_cut(by_ticket).await;
    assert_eq!(gateway.call(&unused).await.status, 401);
    until(&gateway, || read(&of_globex), 200).await;
    refused(&gateway, &read(&token), 401, "do not match").await;
    // Without the issuer nothing is left.
    file.save(OFF);
    shows(&gateway, "no issuer", |config| !has_globex(config)).await;
    assert_eq!(gateway.call(&read(&of_globex)).await.status, 401);
    assert_eq!(gateway.call(&read(ADMIN)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_ends_with_its_workspace_and_with_its_token() {
    let key = Key::rsa("k8s-1");
    let issuer = Issuer::start(CLUSTER, &[&key]).await;
    let (gateway, _agent) = with(Pair::Embedded, &[platform(&issuer, kubernetes())]).await;
    let long = account_token(&key, &claims("acme", "dev"));
    until(&gateway, || beat("target", &long), 403).await;
    let mut brief = claims("acme", "target");
    brief["exp"] = (jsonwebtoken::get_current_timestamp() + 10).into();
    let brief = account_token(&key, &brief);
    let by_brief = Socket::open(gateway.public, &handshake("/ws").bearer(&brief)).await;
    is_cut(by_brief).await;
    let by_long = Socket::open(gateway.public, &handshake("/ws").bearer(&long)).await;
    let gone = Request::new("DELETE", "/workspaces/dev");
    assert_eq!(gateway.as_operator(gone).await.status, 200);
    is_cut(by_long).await;
}
