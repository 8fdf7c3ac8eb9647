/* The algebra, by property: random layouts, and what must hold of each. */
#include "support.h"

enum { ROUNDS = 2000 };

static void check_random(rng *r, sheaf_arena *a) {
    int n_devices = 1 + (int)below(r, 9);
    int64_t ne[4] = {1 + below(r, 6), 1 + below(r, 6), 1 + below(r, 6), 1 + below(r, 6)};
    int axis = (int)below(r, 4);
    ne[axis] = 1 + below(r, 40);
    sheaf_layout l = random_cut(r, a, axis, ne[axis], 1, n_devices);
    char text[512];
    sheaf_layout_text(&l, text, sizeof text);
    cr_assert_eq(sheaf_layout_check(&l, ne, n_devices), SHEAF_OK, "%s: %s", text, sheaf_error());
    cr_assert(sheaf_layout_equal(&l, &l));
    cr_assert(sheaf_layout_covers(&l, &l, n_devices), "%s", text);

    /* every element lies where local_index says, and shares add up to the holders */
    int64_t held = 0, holders = 0;
    for (int d = 0; d < n_devices; d++) {
        int64_t expect = 0;
        for (int64_t i = 0; i < ne[axis]; i++) {
            int64_t at = sheaf_layout_local_index(&l, d, i);
            if (at < 0) continue;
            cr_assert_eq(at, expect, "%s: element %" PRId64 " of device %d at %" PRId64 ", not %" PRId64, text, i, d,
                         at, expect);
            expect++;
        }
        int64_t share = sheaf_layout_share(&l, d, ne[axis]);
        cr_assert_eq(share, expect, "%s: device %d has %" PRId64 ", walks %" PRId64, text, d, share, expect);
        held += share;
    }
    for (int i = 0; i < l.n_runs; i++) holders += l.runs[i].length * __builtin_popcountll(l.runs[i].devices);
    if (l.kind == SHEAF_AXIS) cr_assert_eq(held, holders, "%s: %" PRId64 " of %" PRId64, text, held, holders);

    if (l.kind != SHEAF_AXIS) return;
    /* a slice and its complement, joined, are the whole again */
    int64_t at = below(r, ne[axis] + 1);
    sheaf_layout x, y, z;
    cr_assert_eq(sheaf_layout_slice(a, &l, 0, at, n_devices, &x), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_layout_slice(a, &l, at, ne[axis], n_devices, &y), SHEAF_OK, "%s", sheaf_error());
    if (x.kind == SHEAF_AXIS && y.kind == SHEAF_AXIS) {
        cr_assert_eq(sheaf_layout_join(a, &x, &y, n_devices, &z), SHEAF_OK, "%s", sheaf_error());
        char joined[512];
        cr_assert(sheaf_layout_equal(&l, &z), "%s cut at %" PRId64 " and joined: %s", text, at,
                  sheaf_layout_text(&z, joined, 512));
    }
    /* scaling up and down again */
    cr_assert_eq(sheaf_layout_scale(a, &l, 6, 1, &x), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_layout_length(&x), 6 * ne[axis], "%s", text);
    cr_assert_eq(sheaf_layout_scale(a, &x, 1, 6, &y), SHEAF_OK, "%s", sheaf_error());
    cr_assert(sheaf_layout_equal(&l, &y), "%s", text);
    cr_assert_eq(sheaf_layout_hash(&l), sheaf_layout_hash(&y));
    /* single: each element once, and covered by the original */
    cr_assert_eq(sheaf_layout_single(a, &l, n_devices, &x), SHEAF_OK, "%s", sheaf_error());
    if (x.kind == SHEAF_AXIS) {
        cr_assert(sheaf_layout_is_single(&x), "%s", text);
        cr_assert(sheaf_layout_covers(&l, &x, n_devices), "%s", text);
        held = 0;
        for (int d = 0; d < n_devices; d++) held += sheaf_layout_share(&x, d, 0);
        cr_assert_eq(held, ne[axis], "%s: %" PRId64, text, held);
    }
    /* refined by another: same elements on the same devices */
    sheaf_layout other = random_cut(r, a, axis, ne[axis], 1, n_devices);
    if (other.kind != SHEAF_AXIS) return;
    cr_assert_eq(sheaf_layout_refine(a, &l, &other, &z), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_layout_length(&z), ne[axis], "%s", text);
    for (int d = 0; d < n_devices; d++) {
        for (int64_t i = 0; i < ne[axis]; i++) {
            cr_assert_eq(sheaf_layout_local_index(&z, d, i), sheaf_layout_local_index(&l, d, i), "%s at %" PRId64, text,
                         i);
        }
    }
    bool covers = true;
    for (int64_t i = 0; i < ne[axis]; i++) {
        for (int d = 0; d < n_devices; d++) {
            covers = covers && (sheaf_layout_local_index(&other, d, i) < 0 || sheaf_layout_local_index(&l, d, i) >= 0);
        }
    }
    cr_assert_eq(sheaf_layout_covers(&l, &other, n_devices), covers, "%s", text);
}

Test(layouts, random_ones_keep_every_property, .timeout = 120) {
    rng r = {0x5eaf};
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 16, &a), SHEAF_OK);
    for (int i = 0; i < ROUNDS; i++) {
        sheaf_arena_reset(a);
        check_random(&r, a);
    }
    sheaf_arena_free(a);
}

Test(layouts, have_one_spelling, .timeout = 60) {
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 12, &a), SHEAF_OK);
    static const struct {
        const char *given, *canonical;
        int n;
    } rows[] = {
        {"A0 3:0 4:0 5:1", "AXIS(0) [7:{0}] [5:{1}]", 2},
        {"A1 3:0,1 4:0,1", "MIRRORED", 2},
        {"A2 3:0,1 4:0", "AXIS(2) [3:{0,1}] [4:{0}]", 2},
        {"A0 5:0", "MIRRORED", 1},
        {"A0 5:0", "AXIS(0) [5:{0}]", 2},
        {"M", "MIRRORED", 3},
        {"P", "PARTIAL", 3},
    };
    char text[128];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sheaf_layout l = layout_of(a, rows[i].given, rows[i].n);
        sheaf_layout_text(&l, text, sizeof text);
        cr_assert_str_eq(text, rows[i].canonical, "%s: %s, not %s", rows[i].given, text, rows[i].canonical);
    }
    int64_t share[] = {0, 5, 0, 2};
    sheaf_layout l;
    cr_assert_eq(sheaf_layout_shares(a, 1, share, 4, &l), SHEAF_OK);
    sheaf_layout_text(&l, text, sizeof text);
    cr_assert_str_eq(text, "AXIS(1) [5:{1}] [2:{3}]", "%s", text);
    sheaf_arena_free(a);
}

Test(layouts, text_is_cut_to_its_room, .timeout = 60) {
    sheaf_run runs[] = {{1234567, 1}, {7654321, 2}};
    sheaf_layout l = {SHEAF_AXIS, 0, 2, runs};
    char text[64];
    for (size_t n = 1; n <= sizeof text; n++) {
        memset(text, 'x', sizeof text);
        sheaf_layout_text(&l, text, n);
        cr_assert_lt(strlen(text), n, "%zu: %zu", n, strlen(text));
    }
}

/* Case A27: what a callback may answer, and must not. */
Test(layouts, ill_formed_ones_are_refused, .timeout = 60) {
    static const sheaf_run good[] = {{3, 1}, {5, 2}}, zero[] = {{3, 1}, {0, 2}, {5, 1}}, nobody[] = {{3, 1}, {5, 0}},
                           stranger[] = {{3, 1}, {5, 8}}, twins[] = {{3, 1}, {5, 1}}, mirror[] = {{8, 3}},
                           negative[] = {{9, 1}, {-1, 2}}, huge[] = {{INT64_MAX, 1}, {2, 2}};
    const int64_t ne[4] = {8, 8, 8, 8};
    static const struct {
        sheaf_layout l;
        bool ok;
    } rows[] = {
        {{SHEAF_MIRRORED}, true},
        {{SHEAF_PARTIAL}, true},
        {{SHEAF_AXIS, 0, 2, good}, true},
        {{SHEAF_AXIS, 3, 2, good}, true},
        {{SHEAF_AXIS, 4, 2, good}, false},
        {{SHEAF_AXIS, -1, 2, good}, false},
        {{SHEAF_AXIS, 5, 2, good}, false},
        {{SHEAF_AXIS, 10, 2, good}, false},
        {{(sheaf_layout_kind)3}, false},
        {{SHEAF_AXIS, 0, 3, zero}, false},
        {{SHEAF_AXIS, 0, 2, nobody}, false},
        {{SHEAF_AXIS, 0, 2, stranger}, false},
        {{SHEAF_AXIS, 0, 2, twins}, false},
        {{SHEAF_AXIS, 0, 1, mirror}, false},
        {{SHEAF_AXIS, 0, 2, negative}, false},
        {{SHEAF_AXIS, 0, 2, huge}, false},
        {{SHEAF_AXIS, 0, 1, good}, false},
        {{SHEAF_AXIS, 0, 0, good}, false},
        {{SHEAF_AXIS, 0, 2, NULL}, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sheaf_status s = sheaf_layout_check(&rows[i].l, ne, 2);
        cr_assert_eq(s == SHEAF_OK, rows[i].ok, "row %zu: %s (%s)", i, sheaf_status_name(s), sheaf_error());
    }
    sheaf_layout l = {SHEAF_MIRRORED};
    cr_assert_neq(sheaf_layout_check(&l, ne, 0), SHEAF_OK);
    cr_assert_neq(sheaf_layout_check(&l, ne, SHEAF_MAX_DEVICES + 1), SHEAF_OK);
}

Test(layouts, refuse_what_does_not_come_out_whole, .timeout = 60) {
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 12, &a), SHEAF_OK);
    sheaf_layout l = layout_of(a, "A0 320:0 256:1", 2), out;
    cr_assert_eq(sheaf_layout_scale(a, &l, 1, 64, &out), SHEAF_OK);
    cr_assert_eq(out.runs[0].length, 5, "%" PRId64, out.runs[0].length);
    cr_assert_eq(sheaf_layout_scale(a, &l, 1, 96, &out), SHEAF_E_SHAPE);
    cr_assert_eq(sheaf_layout_scale(a, &l, INT64_MAX, 1, &out), SHEAF_E_SHAPE);
    cr_assert_eq(sheaf_layout_scale(a, &l, 1, 0, &out), SHEAF_E_SHAPE);
    cr_assert_eq(sheaf_layout_slice(a, &l, 0, 577, 2, &out), SHEAF_E_RANGE);
    cr_assert_eq(sheaf_layout_slice(a, &l, 5, 4, 2, &out), SHEAF_E_RANGE);
    sheaf_layout other = layout_of(a, "A0 320:0 255:1", 2);
    cr_assert_eq(sheaf_layout_refine(a, &l, &other, &out), SHEAF_E_SHAPE);
    int64_t first, length;
    cr_assert(sheaf_layout_stretch(&l, 1, 576, &first, &length));
    cr_assert(first == 320 && length == 256, "%" PRId64 " %" PRId64, first, length);
    sheaf_layout apart = layout_of(a, "A0 3:0 4:1 5:0", 2);
    cr_assert_not(sheaf_layout_stretch(&apart, 0, 12, &first, &length));
    sheaf_arena_free(a);
}
