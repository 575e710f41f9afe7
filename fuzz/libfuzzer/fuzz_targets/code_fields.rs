//! Drives the target `code-fields` of dray-fuzz with libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dray_fuzz_libfuzzer::run("code-fields", data));
