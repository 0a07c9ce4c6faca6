//! The packages of `clients/`: `scripts/agents` builds and installs them, checks their types, and joins agents of real
//! frameworks to the built program with them.

mod common;

#[test]
fn agents_of_each_framework_join_by_the_packages_and_survive_kills_and_restarts() {
    common::assert_script_passes("scripts/agents");
}
