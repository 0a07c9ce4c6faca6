//! The manifests for Kubernetes: `scripts/manifests` renders and validates them, and runs their containers as processes
//! of the built program.

mod common;

#[test]
fn the_manifests_are_valid_and_the_program_runs_as_they_say() {
    common::assert_script_passes("scripts/manifests");
}
