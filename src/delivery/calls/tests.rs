//! Keys: what tells two calls apart.

use super::{Key, Source};

#[test]
fn a_key_is_of_a_caller_a_target_a_place_and_a_name_and_its_body_is_told_apart() {
    let whose = ("pm", "dev");
    let call = ("send_message", &b"{}"[..]);
    let key = Key::new(whose, (Source::Field, "k"), call);
    assert_eq!(key, Key::new(whose, (Source::Field, "k"), call));
    for other in [
        Key::new(("qa", "dev"), (Source::Field, "k"), call),
        Key::new(("pm", "ops"), (Source::Field, "k"), call),
        Key::new(("p", "mdev"), (Source::Field, "k"), call),
        Key::new(whose, (Source::Task, "k"), call),
        Key::new(whose, (Source::Field, "l"), call),
    ] {
        assert_ne!(other.scope, key.scope);
    }
    for body in [("send_message", &b"{ }"[..]), ("other", b"{}")] {
        let other = Key::new(whose, (Source::Field, "k"), body);
        assert_eq!(other.scope, key.scope);
        assert_ne!(other.body, key.body);
    }
    assert_eq!(key.scope.len(), 64);
}
