//! Golden data: one module per source, every case of every family.

#[test]
fn the_set_in_use_is_a_golden_set() {
    ceteris_tests::golden::assert_set_is_known();
}
