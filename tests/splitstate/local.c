/* One device's version of a node: shapes, strides, offsets, and the parameters that differ by device. */
#include "support.h"

typedef struct expected {
    int64_t ne[3];
    size_t nb[3], offset;
    bool empty;
} expected;

static void check(const sheaf_tensor *t, const char *root, int device, const expected *e) {
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 12, &a), SHEAF_OK);
    sheaf_layout r = layout_of(a, root, 3);
    sheaf_rule_env env = {.n_devices = 3};
    sheaf_rule_result rule;
    sheaf_local l;
    cr_assert_eq(sheaf_rule_apply(a, &env, t, NULL, &r, &rule), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_rule_local(t, NULL, &rule.want_root, &rule.result, device, &l), SHEAF_OK, "%s", sheaf_error());
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(l.ne[i], e->ne[i], "%s of %s on %d: ne[%d] is %" PRId64 ", not %" PRId64, t->name, root, device, i,
                     l.ne[i], e->ne[i]);
        if (e->empty) continue;
        cr_assert_eq(l.nb[i], e->nb[i], "%s of %s on %d: nb[%d] is %zu, not %zu", t->name, root, device, i, l.nb[i],
                     e->nb[i]);
    }
    cr_assert_eq(l.view_offs, e->offset, "%s of %s on %d: offset %zu, not %zu", t->name, root, device, l.view_offs,
                 e->offset);
    cr_assert_eq(l.empty, e->empty, "%s of %s on %d", t->name, root, device);
    sheaf_arena_free(a);
}

Test(local, views_take_their_strides_from_the_shard, .timeout = 60) {
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 12, &a), SHEAF_OK);
    /* cache {12, 10} f16: cells 2..5 of 3 heads of 4 */
    sheaf_tensor *cache = sheaf_new_2d(a, SHEAF_F16, 12, 10);
    sheaf_tensor *k = sheaf_set_name(sheaf_view_3d(a, cache, 4, 4, 3, 24, 8, 48), "k");
    check(k, "A0 4:0 4:0,1 4:1", 0, &(expected){{4, 4, 2}, {2, 16, 8}, 32, false});
    check(k, "A0 4:0 4:0,1 4:1", 1, &(expected){{4, 4, 2}, {2, 16, 8}, 32, false});
    check(k, "A0 4:0 4:0,1 4:1", 2, &(expected){{4, 4, 0}, {2, 0, 8}, 0, true});
    check(k, "M", 1, &(expected){{4, 4, 3}, {2, 24, 8}, 48, false});
    /* one part of a fused {12, 4}: q | k | v of 4 */
    sheaf_tensor *part = sheaf_set_name(sheaf_view_2d(a, sheaf_new_2d(a, SHEAF_F32, 12, 4), 4, 4, 48, 32), "part");
    check(part, "A0 2:0 2:1 2:0 2:1 1:0 3:1", 0, &(expected){{1, 4, 1}, {4, 20, 80}, 16, false});
    check(part, "A0 2:0 2:1 2:0 2:1 1:0 3:1", 1, &(expected){{3, 4, 1}, {4, 28, 112}, 16, false});
    /* a contiguous shard says so */
    sheaf_tensor *heads = sheaf_set_name(sheaf_reshape_3d(a, sheaf_new_2d(a, SHEAF_F32, 12, 1), 4, 3, 1), "heads");
    check(heads, "A0 8:0 4:1", 0, &(expected){{4, 2, 1}, {4, 16, 32}, 0, false});
    /* rows of a table cut along rows; blocks of a quantised one */
    sheaf_tensor *rows = sheaf_set_name(sheaf_view_2d(a, sheaf_new_2d(a, SHEAF_F32, 8, 6), 8, 4, 32, 64), "rows");
    check(rows, "A1 3:0 3:1", 0, &(expected){{8, 1, 1}, {4, 32, 32}, 64, false});
    check(rows, "A1 3:0 3:1", 1, &(expected){{8, 3, 1}, {4, 32, 96}, 0, false});
    sheaf_tensor *blocks =
        sheaf_set_name(sheaf_view_2d(a, sheaf_new_2d(a, SHEAF_Q8_0, 128, 4), 64, 4, 136, 34), "blocks");
    check(blocks, "A0 64:0 64:1", 1, &(expected){{32, 4, 1}, {34, 68, 272}, 0, false});
    sheaf_arena_free(a);
}

Test(local, heads_and_rows_are_numbered_globally, .timeout = 60) {
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 13, &a), SHEAF_OK);
    sheaf_tensor *kv = sheaf_new_3d(a, SHEAF_F16, 8, 6, 3);
    sheaf_tensor *att = sheaf_attention(a, sheaf_new_3d(a, SHEAF_F32, 8, 2, 9), kv, kv, NULL, NULL, 1, 0, 0);
    sheaf_layout src[SHEAF_MAX_SRC] = {layout_of(a, "A2 5:0 4:1", 2), layout_of(a, "A2 1:0 1:0,1 1:1", 2),
                                       layout_of(a, "A2 1:0 1:0,1 1:1", 2)};
    sheaf_layout result = layout_of(a, "A1 5:0 4:1", 2);
    static const int32_t numbers[2][2] = {{0, 0}, {5, 1}};
    sheaf_local l;
    for (int d = 0; d < 2; d++) {
        cr_assert_eq(sheaf_rule_local(att, src, NULL, &result, d, &l), SHEAF_OK, "%s", sheaf_error());
        cr_assert_eq(l.params.attention.q_head0, numbers[d][0], "device %d: query head %d", d,
                     l.params.attention.q_head0);
        cr_assert_eq(l.params.attention.kv_head0, numbers[d][1], "device %d: KV head %d", d,
                     l.params.attention.kv_head0);
        cr_assert_eq(l.params.attention.n_head, 9, "%d", l.params.attention.n_head);
        cr_assert_eq(l.params.attention.n_kv, 3, "%d", l.params.attention.n_kv);
    }
    sheaf_tensor *lookup = sheaf_get_rows(a, sheaf_new_2d(a, SHEAF_F32, 8, 6), sheaf_new_1d(a, SHEAF_I32, 4));
    src[0] = layout_of(a, "A1 2:0 4:1", 2);
    src[1] = sheaf_layout_mirrored();
    result = sheaf_layout_partial();
    for (int d = 0; d < 2; d++) {
        cr_assert_eq(sheaf_rule_local(lookup, src, NULL, &result, d, &l), SHEAF_OK, "%s", sheaf_error());
        cr_assert_eq(l.params.rows.id_first, d == 0 ? 0 : 2, "device %d: row %d", d, l.params.rows.id_first);
        cr_assert(l.ne[0] == 8 && l.ne[1] == 4, "%" PRId64 " x %" PRId64, l.ne[0], l.ne[1]);
    }
    sheaf_tensor *write = sheaf_set_rows(a, sheaf_new_2d(a, SHEAF_F16, 8, 6), sheaf_new_2d(a, SHEAF_F32, 8, 2),
                                         sheaf_new_1d(a, SHEAF_I64, 2));
    sheaf_layout root = layout_of(a, "A1 2:0 4:1", 2);
    cr_assert_eq(sheaf_rule_local(write, src, &root, &root, 1, &l), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(l.params.rows.id_first, 2, "row %d", l.params.rows.id_first);
    cr_assert_eq(l.ne[1], 4, "%" PRId64, l.ne[1]);
    sheaf_arena_free(a);
}

/* Of a row that all have beside one that is cut, one device counts the squares: the first that has a part of the
 * latter. Of elements of the cut row that two hold, the first of them counts. Device 0 has no part, so it adds nothing.
 */
Test(local, squares_are_counted_once, .timeout = 60) {
    static const int32_t skip[3][2] = {{0, 0}, {0, 0}, {1, 6}};
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 12, &a), SHEAF_OK);
    for (int cut = 0; cut < 2; cut++) {
        sheaf_tensor *x[2];
        sheaf_layout src[SHEAF_MAX_SRC], result = sheaf_layout_partial();
        sheaf_local l;
        x[cut] = sheaf_new_2d(a, SHEAF_F32, 8, 2);
        x[!cut] = sheaf_new_2d(a, SHEAF_F32, 6, 2);
        src[cut] = layout_of(a, "A0 4:1 1:1,2 3:2", 3);
        src[!cut] = sheaf_layout_mirrored();
        sheaf_tensor *sum = sheaf_sum_squares(a, x[0], x[1]);
        for (int d = 1; d < 3; d++) {
            cr_assert_eq(sheaf_rule_local(sum, src, NULL, &result, d, &l), SHEAF_OK, "%s", sheaf_error());
            const int32_t *got = l.params.sum_squares.skip;
            cr_assert_eq(got[cut], skip[d][0], "device %d skips %d of its part", d, got[cut]);
            cr_assert_eq(got[!cut], skip[d][1], "device %d skips %d of the whole row", d, got[!cut]);
        }
    }
    sheaf_arena_free(a);
}

Test(local, a_border_inside_a_block_is_an_error, .timeout = 60) {
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 12, &a), SHEAF_OK);
    sheaf_tensor *t = sheaf_set_name(sheaf_new_2d(a, SHEAF_Q8_0, 64, 4), "w");
    sheaf_layout l = layout_of(a, "A0 48:0 16:1", 2);
    sheaf_local local;
    cr_assert_eq(sheaf_rule_local(t, NULL, NULL, &l, 0, &local), SHEAF_E_SHAPE, "%s", sheaf_error());
    cr_assert_not_null(strstr(sheaf_error(), "w: device 0 has 48 elements"), "%s", sheaf_error());
    sheaf_arena_free(a);
}
