/* launch/speed.c with a machine made up: what counts as the limit, and how the share is said. */
#include "launch/launch.h"
#include "tests/support/expect.h"

static const double *rates; /* what is "measured", in turn; the last one stays */
static int n_rates, measured;

sheaf_status machine_read_gbs(size_t bytes, int threads, double *gbs) {
    (void)bytes, (void)threads;
    *gbs = rates[measured < n_rates ? measured : n_rates - 1];
    measured++;
    return SHEAF_OK;
}

static double limit_of(const double *r, int n, double seen) {
    double limit = 0;
    rates = r;
    n_rates = n;
    measured = 0;
    cr_assert(machine_limit(1 << 20, 2, seen, &limit) == SHEAF_OK);
    return limit;
}

Test(speed, a_limit_above_what_was_seen_is_measured_once) {
    static const double r[] = {10, 20};
    cr_expect_eq(limit_of(r, 2, 9), 10);
    cr_expect_eq(measured, 1);
}

Test(speed, a_limit_below_is_measured_again_and_the_largest_counts) {
    static const double r[] = {1, 12, 20}, falling[] = {3, 2, 1};
    cr_expect_eq(limit_of(r, 3, 9), 12);
    cr_expect_eq(measured, 2);
    cr_expect_eq(limit_of(falling, 3, 9), 3, "a smaller one took its place");
    cr_expect(measured > 1 && measured < 10, "%d tries", measured);
}

Test(speed, no_share_above_the_whole_is_told) {
    char out[64];
    expect_text(share_text(9, 12, out), "75.0 %");
    expect_text(share_text(12, 12, out), "100.0 %");
    cr_expect(strstr(share_text(64, 10, out), "busy") && !strchr(out, '%'), "\"%s\"", out);
    cr_expect(!strchr(share_text(64, 0, out), '%'), "\"%s\"", out);
}
