//! Drives the target `delivery` of dray-fuzz with libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dray_fuzz_libfuzzer::run("delivery", data));
