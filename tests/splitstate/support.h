/* What the tests of this room share: random layouts, a seeded generator, layouts from text. */
#ifndef SHEAF_TESTS_SPLITSTATE_SUPPORT_H
#define SHEAF_TESTS_SPLITSTATE_SUPPORT_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "splitstate/splitstate.h"

typedef struct rng {
    uint64_t state;
} rng;

static inline uint64_t next_random(rng *r) {
    r->state ^= r->state << 13;
    r->state ^= r->state >> 7;
    r->state ^= r->state << 17;
    return r->state;
}

/* 0 .. n-1 */
static inline int64_t below(rng *r, int64_t n) { return (int64_t)(next_random(r) % (uint64_t)n); }

/* A random cut of `length` elements along `axis` in multiples of `unit`, replicated here and there; never MIRRORED
 * unless one device or bad luck makes it so. */
static inline sheaf_layout random_cut(rng *r, sheaf_arena *a, int axis, int64_t length, int64_t unit, int n_devices) {
    sheaf_run runs[16];
    int n = 0;
    int64_t left = length / unit;
    while (left > 0) {
        int64_t take = n == 15 ? left : 1 + below(r, left);
        sheaf_device_set set =
            below(r, 4) ? (sheaf_device_set)1 << below(r, n_devices) : next_random(r) & sheaf_all_devices(n_devices);
        runs[n++] = (sheaf_run){take * unit, set ? set : 1};
        left -= take;
    }
    sheaf_layout out;
    cr_assert_eq(sheaf_layout_axis(a, axis, runs, n, n_devices, &out), SHEAF_OK, "%s", sheaf_error());
    return out;
}

/* "M", "P", or "A1 320:0 64:0,1 256:1": a layout from text. */
static inline sheaf_layout layout_of(sheaf_arena *a, const char *text, int n_devices) {
    sheaf_layout out = sheaf_layout_mirrored();
    sheaf_run runs[16];
    int n = 0;
    if (text[0] == 'P') return sheaf_layout_partial();
    if (text[0] != 'A') return out;
    int axis = text[1] - '0';
    const char *p = text + 2;
    while (*p == ' ') {
        char *end;
        runs[n].length = strtoll(p, &end, 10);
        runs[n].devices = 0;
        do runs[n].devices |= (sheaf_device_set)1 << strtol(end + 1, &end, 10);
        while (*end == ',');
        p = end;
        n++;
    }
    cr_assert_eq(sheaf_layout_axis(a, axis, runs, n, n_devices, &out), SHEAF_OK, "%s", sheaf_error());
    return out;
}

#endif
