//! The description of the HTTP API: `scripts/check-openapi` holds `docs/openapi.yaml` against the built program.

mod common;

#[test]
fn the_description_is_valid_and_the_gateway_answers_as_it_says() {
    common::assert_script_passes("scripts/check-openapi");
}
