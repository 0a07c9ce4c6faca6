#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| a2a_gateway_fuzz::answer::run(input));
