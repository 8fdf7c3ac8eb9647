/* Constructors: what they make, what they refuse, and where views look. */
#include "tensor/tensor.h"
#include "tests/support/support.h"

#include <stdlib.h>

static sheaf_arena *a;

static void start(void) { expect_ok(sheaf_arena_new(1 << 16, &a)); }
static void stop(void) { sheaf_arena_free(a); }

TestSuite(ops, .init = start, .fini = stop, .timeout = 20);
TestSuite(views, .init = start, .fini = stop, .timeout = 20);

static sheaf_tensor *f32(int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    return sheaf_new_4d(a, SHEAF_F32, ne0, ne1, ne2, ne3);
}

static void expect_shape(const sheaf_tensor *t, const char *shape) {
    char text[96];
    cr_assert(t != NULL, "no tensor (%s), expected %s", (sheaf_arena_status(a), sheaf_error()), shape);
    expect_text(sheaf_shape_text(t, text, sizeof text), shape);
}

/* `t` must be NULL with this status; the arena is clean afterwards. */
static void expect_refused(const sheaf_tensor *t, sheaf_status status, const char *words) {
    cr_assert(t == NULL, "a node was made; expected %s", words);
    expect_status(sheaf_arena_status(a), status);
    expect_error(words);
    sheaf_arena_reset(a);
}

Test(ops, leafs_have_the_strides_of_whole_rows) {
    sheaf_tensor *t = sheaf_new_3d(a, SHEAF_Q4_0, 64, 3, 5);
    expect_int(t->nb[0], 18);
    expect_int(t->nb[1], 36);
    expect_int(t->nb[2], 108);
    expect_int(t->nb[3], 540);
    expect_int(sheaf_nbytes(t), 540);
    expect_int(sheaf_nelements(t), 960);
    expect_int(sheaf_nrows(t), 15);
    cr_assert(sheaf_is_contiguous(t) && sheaf_rows_contiguous(t) && !sheaf_is_permuted(t), "a fresh tensor is whole");
    expect_int(t->index, -1);
    expect_int(sheaf_nbytes(f32(0, 5, 1, 1)), 0);
    expect_shape(f32(0, 5, 1, 1), "[0, 5]");
    expect_shape(sheaf_dup(a, f32(1, 2, 3, 1)), "[1, 2, 3]");
}

Test(ops, leafs_that_cannot_be_are_refused) {
    expect_refused(sheaf_new_1d(a, SHEAF_Q4_0, 33), SHEAF_E_SHAPE, "[33]");
    expect_refused(sheaf_new_1d(a, SHEAF_F32, -1), SHEAF_E_SHAPE, "[-1]");
    expect_refused(sheaf_new_2d(a, SHEAF_F32, INT64_MAX, 2), SHEAF_E_SHAPE, "cannot be");
    expect_refused(sheaf_new_4d(a, SHEAF_F64, 1 << 30, 1 << 30, 1, 1), SHEAF_E_SHAPE, "cannot be");
    expect_refused(sheaf_new(a, SHEAF_F32, 5, (const int64_t[]){1, 1, 1, 1, 1}), SHEAF_E_SHAPE, "5 dimensions");
    expect_refused(sheaf_new(a, SHEAF_F32, 0, NULL), SHEAF_E_SHAPE, "0 dimensions");
    expect_refused(sheaf_new_1d(a, (sheaf_type)9, 32), SHEAF_E_UNSUPPORTED, "type 9");
    cr_assert(sheaf_new_1d(NULL, SHEAF_F32, 1) == NULL, "a tensor without arena");
}

Test(ops, names_are_cut_and_may_quote_themselves) {
    sheaf_tensor *t = sheaf_set_name(f32(1, 1, 1, 1), "blk.%d.%s", 3, "attn_q.weight");
    expect_text(t->name, "blk.3.attn_q.weight");
    sheaf_set_name(t, "%s (copy)", t->name);
    expect_text(t->name, "blk.3.attn_q.weight (copy)");
    sheaf_set_name(t, "%0100d", 1);
    expect_int(strlen(t->name), SHEAF_MAX_NAME - 1);
    cr_assert(sheaf_set_name(NULL, "x") == NULL && sheaf_set_flag(NULL, 1) == NULL, "NULL does not pass");
}

Test(ops, results_have_the_shapes_of_their_declaration) {
    sheaf_params rope = {.rope = {.kind = SHEAF_ROPE_NEOX, .n_dims = 64, .freq_base = 1e4f, .freq_scale = 1}};
    sheaf_tensor *x = f32(64, 9, 5, 1), *w = sheaf_new_2d(a, SHEAF_Q8_0, 64, 32);
    expect_shape(sheaf_cont(a, x), "[64, 9, 5]");
    expect_shape(sheaf_add(a, x, f32(64, 1, 1, 1)), "[64, 9, 5]");
    expect_shape(sheaf_mul(a, x, f32(1, 3, 5, 1)), "[64, 9, 5]");
    expect_shape(sheaf_scale(a, x, 2, 1), "[64, 9, 5]");
    expect_shape(sheaf_unary_op(a, x, SHEAF_UNARY_SILU), "[64, 9, 5]");
    expect_shape(sheaf_glu_op(a, x, sheaf_dup(a, x), SHEAF_GLU_SWIGLU), "[64, 9, 5]");
    expect_shape(sheaf_rms_norm(a, x, f32(64, 1, 1, 1), 1e-5f), "[64, 9, 5]");
    expect_shape(sheaf_norm(a, x, NULL, f32(64, 1, 1, 1), 1e-5f), "[64, 9, 5]");
    expect_shape(sheaf_soft_max(a, x, sheaf_new_2d(a, SHEAF_F16, 64, 9), 1, 0), "[64, 9, 5]");
    expect_shape(sheaf_rope(a, x, sheaf_new_1d(a, SHEAF_I32, 5), f32(32, 1, 1, 1), &rope), "[64, 9, 5]");
    expect_shape(sheaf_mul_mat(a, w, x), "[32, 9, 5]");
    expect_shape(sheaf_mul_mat(a, sheaf_new_3d(a, SHEAF_F16, 64, 7, 5), f32(64, 2, 10, 3)), "[7, 2, 10, 3]");
    expect_shape(sheaf_get_rows(a, w, sheaf_new_1d(a, SHEAF_I32, 4)), "[64, 4]");
    expect_shape(
        sheaf_set_rows(a, sheaf_new_2d(a, SHEAF_F16, 64, 100), f32(64, 3, 1, 1), sheaf_new_1d(a, SHEAF_I64, 3)),
        "[64, 100]");
    expect_shape(sheaf_concat(a, x, f32(64, 2, 5, 1), 1), "[64, 11, 5]");
    expect_shape(sheaf_sum_rows(a, x), "[1, 9, 5]");
    expect_shape(sheaf_sum_squares(a, x, f32(32, 9, 5, 1)), "[2, 9, 5]");
    expect_shape(sheaf_rms_norm_by(a, x, f32(2, 9, 5, 1), 1, f32(64, 1, 1, 1), 1e-5f), "[64, 9, 5]");
    expect_shape(sheaf_argmax(a, f32(100, 3, 1, 1)), "[3]");
    expect_int(sheaf_argmax(a, f32(100, 3, 1, 1))->type, SHEAF_I32);
    expect_shape(sheaf_cpy(a, x, sheaf_new_3d(a, SHEAF_F16, 64, 9, 5)), "[64, 9, 5]");
    expect_shape(sheaf_fill(a, x, 0), "[64, 9, 5]");
    expect_ok(sheaf_arena_status(a));
}

Test(ops, attention_keeps_heads_and_global_counts) {
    sheaf_tensor *q = f32(64, 5, 9, 1), *k = sheaf_new_3d(a, SHEAF_F16, 64, 256, 3);
    sheaf_tensor *v = sheaf_new_3d(a, SHEAF_Q8_0, 32, 256, 3), *mask = sheaf_new_2d(a, SHEAF_F16, 256, 5);
    sheaf_tensor *t = sheaf_attention(a, q, k, v, mask, f32(9, 1, 1, 1), 0.125f, 0, 30);
    expect_shape(t, "[32, 9, 5]");
    expect_int(t->params.attention.n_head, 9);
    expect_int(t->params.attention.n_kv, 3);
    cr_assert(t->src[3] == mask && t->src[4] != NULL, "mask and sinks are sources 3 and 4");
    expect_refused(sheaf_attention(a, f32(64, 5, 8, 1), k, v, NULL, NULL, 1, 0, 0), SHEAF_E_SHAPE, "no multiple");
}

Test(ops, results_that_are_their_target_alias_it) {
    sheaf_tensor *cache = sheaf_new_2d(a, SHEAF_F16, 64, 100);
    sheaf_tensor *part = sheaf_view_2d(a, cache, 64, 50, cache->nb[1], 10 * cache->nb[1]);
    sheaf_tensor *t = sheaf_set_rows(a, part, f32(64, 3, 1, 1), sheaf_new_1d(a, SHEAF_I64, 3));
    cr_assert(t->view_src == cache && t->view_offs == 10 * cache->nb[1], "set_rows writes into the root of its target");
    t = sheaf_cpy(a, f32(64, 50, 1, 1), part);
    cr_assert(t->view_src == cache && t->view_offs == 1280 && t->type == SHEAF_F16, "cpy is a view of its target");
    t = sheaf_fill(a, part, 3);
    cr_assert(t->view_src == cache && t->params.fill.value == 3, "fill is a view of its target");
}

Test(ops, what_does_not_fit_is_refused_with_both_shapes) {
    sheaf_params rope = {.rope = {.n_dims = 7}};
    sheaf_params odd_kind = {.rope = {.kind = 1, .n_dims = 4}};
#define X f32(64, 9, 5, 1)
    expect_refused(sheaf_add(a, X, f32(63, 1, 1, 1)), SHEAF_E_SHAPE, "add: '' [64, 9, 5] f32, '' [63]");
    expect_refused(sheaf_add(a, X, sheaf_new_1d(a, SHEAF_F16, 64)), SHEAF_E_SHAPE, "both must be f32");
    expect_refused(sheaf_add(a, X, f32(0, 1, 1, 1)), SHEAF_E_SHAPE, "does not broadcast");
    expect_refused(sheaf_sub(a, X, NULL), SHEAF_E_ARGUMENT, "sub: source 1 is NULL");
    expect_refused(sheaf_scale(a, sheaf_new_1d(a, SHEAF_I32, 3), 1, 0), SHEAF_E_SHAPE, "must be f32");
    expect_refused(sheaf_unary_op(a, X, SHEAF_UNARY_COUNT), SHEAF_E_ARGUMENT, "kind");
    expect_refused(sheaf_glu_op(a, X, f32(64, 9, 4, 1), SHEAF_GLU_SWIGLU), SHEAF_E_SHAPE, "one shape");
    expect_refused(sheaf_glu_op(a, X, X, SHEAF_GLU_COUNT), SHEAF_E_ARGUMENT, "kind");
    expect_refused(sheaf_rms_norm(a, X, f32(63, 1, 1, 1), 0), SHEAF_E_SHAPE, "no weight");
    expect_refused(sheaf_norm(a, X, NULL, f32(64, 2, 1, 1), 0), SHEAF_E_SHAPE, "no bias");
    expect_refused(sheaf_soft_max(a, X, f32(64, 8, 1, 1), 1, 0), SHEAF_E_SHAPE, "no mask");
    expect_refused(sheaf_rope(a, X, sheaf_new_1d(a, SHEAF_I32, 4), NULL, &rope), SHEAF_E_SHAPE, "i32 position");
    expect_refused(sheaf_rope(a, X, sheaf_new_1d(a, SHEAF_I32, 5), NULL, &rope), SHEAF_E_SHAPE, "even");
    expect_refused(sheaf_rope(a, X, sheaf_new_1d(a, SHEAF_I32, 5), NULL, &odd_kind), SHEAF_E_SHAPE, "kind");
    expect_refused(sheaf_mul_mat(a, f32(63, 2, 1, 1), X), SHEAF_E_SHAPE, "first dimensions differ");
    expect_refused(sheaf_mul_mat(a, f32(64, 2, 2, 1), X), SHEAF_E_SHAPE, "batches");
    expect_refused(sheaf_mul_mat(a, sheaf_new_2d(a, SHEAF_I32, 64, 2), X), SHEAF_E_SHAPE, "floats or blocks");
    expect_refused(sheaf_mul_mat(a, X, sheaf_transpose(a, f32(5, 64, 5, 1))), SHEAF_E_SHAPE, "whole rows");
    expect_refused(sheaf_mul_mat_segments(a, sheaf_mul_mat(a, sheaf_new_2d(a, SHEAF_Q4_0, 64, 2), X), 16),
                   SHEAF_E_SHAPE, "segments");
    expect_refused(sheaf_mul_mat_segments(a, X, 32), SHEAF_E_SHAPE, "only a product");
    expect_refused(sheaf_get_rows(a, X, sheaf_new_1d(a, SHEAF_I32, 4)), SHEAF_E_SHAPE, "matrix");
    expect_refused(sheaf_get_rows(a, f32(64, 9, 1, 1), sheaf_new_1d(a, SHEAF_I64, 4)), SHEAF_E_SHAPE, "i32");
    expect_refused(sheaf_set_rows(a, f32(64, 9, 1, 1), f32(64, 3, 1, 1), sheaf_new_1d(a, SHEAF_I64, 2)), SHEAF_E_SHAPE,
                   "id a row");
    expect_refused(sheaf_concat(a, X, f32(64, 9, 4, 1), 1), SHEAF_E_SHAPE, "outside the joined");
    expect_refused(sheaf_concat(a, X, X, 4), SHEAF_E_SHAPE, "joined");
    expect_refused(sheaf_cpy(a, X, f32(64, 45, 1, 1)), SHEAF_E_SHAPE, "shapes differ");
    expect_refused(sheaf_argmax(a, X), SHEAF_E_SHAPE, "matrix");
    expect_refused(sheaf_sum_squares(a, X, f32(64, 9, 4, 1)), SHEAF_E_SHAPE, "as many in both");
    expect_refused(sheaf_rms_norm_by(a, X, f32(2, 9, 5, 1), 2, NULL, 0), SHEAF_E_SHAPE, "no sum");
#undef X
}

Test(ops, only_row_local_ops_may_work_in_place) {
    for (int op = 0; op < SHEAF_OP_COUNT; op++) {
        if (sheaf_op_is_header((sheaf_op)op)) {
            cr_assert(!sheaf_op_can_inplace((sheaf_op)op), "%s computes nothing", sheaf_op_name((sheaf_op)op));
        }
    }
    static const sheaf_op never[] = {SHEAF_OP_MUL_MAT, SHEAF_OP_CONT,     SHEAF_OP_CPY,    SHEAF_OP_ATTENTION,
                                     SHEAF_OP_CONCAT,  SHEAF_OP_SUM_ROWS, SHEAF_OP_ARGMAX, SHEAF_OP_GET_ROWS};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        cr_assert(!sheaf_op_can_inplace(never[i]), "%s must not work in place", sheaf_op_name(never[i]));
    }
    expect_text(sheaf_op_name(SHEAF_OP_MUL_MAT), "mul_mat");
    expect_text(sheaf_op_name((sheaf_op)-1), "?");
}

/* --- views --- */

Test(views, wrong_ones_are_refused) {
    sheaf_tensor *t = sheaf_set_name(f32(8, 4, 1, 1), "t");
    expect_refused(sheaf_view_1d(a, t, 33, 0), SHEAF_E_RANGE, "[33] at byte 0 leaves the 128 bytes of 't'");
    t = f32(8, 4, 1, 1);
    expect_refused(sheaf_view_1d(a, t, 8, 100), SHEAF_E_RANGE, "at byte 100");
    t = f32(8, 4, 1, 1);
    expect_refused(sheaf_view_1d(a, t, 1, 2), SHEAF_E_SHAPE, "whole f32 blocks");
    t = f32(8, 4, 1, 1);
    expect_refused(sheaf_view_2d(a, t, 1, 2, SIZE_MAX - 3, 0), SHEAF_E_RANGE, "view");
    t = f32(8, 4, 1, 1);
    expect_refused(sheaf_view_1d(a, t, 1, SIZE_MAX - 3), SHEAF_E_RANGE, "leaves");
    t = f32(8, 4, 1, 1);
    expect_refused(sheaf_view_2d(a, t, 8, -1, 32, 0), SHEAF_E_RANGE, "view");
    t = f32(8, 4, 1, 1);
    expect_refused(sheaf_reshape_2d(a, t, 8, 5), SHEAF_E_SHAPE, "[8, 4] does not become [8, 5]");
    t = f32(8, 4, 1, 1);
    expect_refused(sheaf_reshape_1d(a, sheaf_transpose(a, t), 32), SHEAF_E_SHAPE, "strided [4, 8]");
    t = f32(8, 4, 1, 1);
    expect_refused(sheaf_permute(a, t, 0, 0, 2, 3), SHEAF_E_SHAPE, "no order");
    t = f32(8, 4, 1, 1);
    expect_refused(sheaf_permute(a, t, 0, 1, 2, 4), SHEAF_E_SHAPE, "no order");
    t = sheaf_new_2d(a, SHEAF_Q4_0, 64, 4);
    expect_refused(sheaf_transpose(a, t), SHEAF_E_SHAPE, "transpose");
    t = sheaf_new_2d(a, SHEAF_Q4_0, 64, 4);
    expect_refused(sheaf_view_1d(a, t, 32, 9), SHEAF_E_SHAPE, "whole q4_0 blocks");
    t = sheaf_new_2d(a, SHEAF_Q4_0, 64, 4);
    expect_refused(sheaf_view_1d(a, t, 40, 0), SHEAF_E_SHAPE, "not whole q4_0 blocks");
    expect_refused(sheaf_reshape_1d(a, NULL, 32), SHEAF_E_ARGUMENT, "reshape: source 0 is NULL");
}

Test(views, empty_ones_are_fine) {
    sheaf_tensor *t = f32(8, 0, 3, 1);
    expect_shape(sheaf_reshape_1d(a, t, 0), "[0]");
    expect_shape(sheaf_view_2d(a, t, 8, 0, 32, 0), "[8, 0]");
    expect_shape(sheaf_permute(a, t, 1, 0, 2, 3), "[0, 8, 3]");
    cr_assert(sheaf_is_contiguous(t) && sheaf_nbytes(t) == 0, "empty tensors are whole and have no bytes");
}

/* The byte of element (i0..i3), from the root's first byte. */
static size_t byte_of(const sheaf_tensor *t, const int64_t i[4]) {
    size_t at = t->view_offs;
    for (int d = 0; d < 4; d++) at += (size_t)i[d] * t->nb[d];
    return at;
}

/* One random view of `t`, or NULL if the kind drawn does not apply. */
static sheaf_tensor *random_view(rng *r, sheaf_tensor *t) {
    int64_t ne[4], from[4];
    size_t offset = 0;
    switch (rng_below(r, 4)) {
    case 0: return sheaf_transpose(a, t);
    case 1: {
        int to[4] = {0, 1, 2, 3};
        for (int i = 3; i > 0; i--) {
            int j = (int)rng_below(r, i + 1), keep = to[i];
            to[i] = to[j], to[j] = keep;
        }
        return sheaf_permute(a, t, to[0], to[1], to[2], to[3]);
    }
    case 2:
        if (!sheaf_is_contiguous(t)) return NULL;
        return sheaf_reshape_2d(a, t, t->ne[0] * t->ne[1], t->ne[2] * t->ne[3]);
    default:
        for (int d = 0; d < 4; d++) {
            from[d] = rng_below(r, t->ne[d]);
            ne[d] = 1 + rng_below(r, t->ne[d] - from[d]);
            offset += (size_t)from[d] * t->nb[d];
        }
        return sheaf_view_4d(a, t, ne, t->nb, offset);
    }
}

/* Follows an element of a view back through its chain to the root, by what each op means. */
static size_t follow(const sheaf_tensor *t, const int64_t index[4]) {
    int64_t i[4], j[4];
    memcpy(i, index, sizeof i);
    for (; t->src[0]; t = t->src[0]) {
        const sheaf_tensor *s = t->src[0];
        if (t->op == SHEAF_OP_TRANSPOSE || t->op == SHEAF_OP_PERMUTE) {
            for (int d = 0; d < 4; d++) j[d] = i[t->params.permute.dim[d]];
        } else if (t->op == SHEAF_OP_RESHAPE) {
            int64_t flat = ((i[3] * t->ne[2] + i[2]) * t->ne[1] + i[1]) * t->ne[0] + i[0];
            for (int d = 0; d < 4; d++) j[d] = flat % s->ne[d], flat /= s->ne[d];
        } else {
            /* A view with its source's strides: the offset says which element is its first. */
            size_t offset = t->view_offs - s->view_offs;
            return byte_of(s, i) + offset;
        }
        memcpy(i, j, sizeof i);
    }
    return byte_of(t, i);
}

Test(views, chains_of_views_look_where_their_ops_say, .timeout = 60) {
    rng r = rng_start("views");
    for (int round = 0; round < 2000; round++) {
        sheaf_arena_reset(a);
        sheaf_tensor *root =
            f32(1 + rng_below(&r, 5), 1 + rng_below(&r, 5), 1 + rng_below(&r, 4), 1 + rng_below(&r, 3));
        sheaf_tensor *t = root;
        for (int depth = 0; depth < 4; depth++) {
            sheaf_tensor *next = random_view(&r, t);
            if (next) t = next;
        }
        if (t == root) continue;
        expect_ok(sheaf_arena_status(a));
        cr_assert(t->view_src == root, "a view's root is not the root");
        for (int k = 0; k < 10; k++) {
            int64_t i[4];
            for (int d = 0; d < 4; d++) i[d] = rng_below(&r, t->ne[d]);
            size_t got = byte_of(t, i), want = follow(t, i);
            cr_assert(got == want, "round %d, %s: byte %zu, expected %zu", round, sheaf_op_name(t->op), got, want);
            cr_assert(got + 4 <= sheaf_nbytes(root), "byte %zu leaves the root", got);
        }
    }
}

Test(views, contiguous_means_that_bytes_are_in_order, .timeout = 60) {
    rng r = rng_start("contiguous");
    int n_whole = 0, n_strided = 0;
    for (int round = 0; round < 2000; round++) {
        sheaf_arena_reset(a);
        sheaf_tensor *t = f32(1 + rng_below(&r, 3), 1 + rng_below(&r, 3), 1 + rng_below(&r, 3), 1 + rng_below(&r, 2));
        for (int depth = 0; depth < 3; depth++) {
            sheaf_tensor *next = random_view(&r, t);
            if (next) t = next;
        }
        bool in_order = true;
        size_t next_byte = t->view_offs;
        for (int64_t e = 0; e < sheaf_nelements(t); e++, next_byte += 4) {
            int64_t i[4], rest = e;
            for (int d = 0; d < 4; d++) i[d] = rest % t->ne[d], rest /= t->ne[d];
            in_order = in_order && byte_of(t, i) == next_byte;
        }
        cr_assert(sheaf_is_contiguous(t) == in_order, "round %d: contiguous is %d, in order %d", round,
                  sheaf_is_contiguous(t), in_order);
        n_whole += in_order, n_strided += !in_order;
    }
    cr_assert(n_whole > 200 && n_strided > 200, "%d whole and %d strided views: too few of one", n_whole, n_strided);
}

Test(views, of_placed_tensors_are_placed) {
    float bytes[32];
    sheaf_tensor *t = f32(8, 4, 1, 1);
    t->data = bytes;
    sheaf_tensor *row = sheaf_view_1d(a, t, 8, 2 * t->nb[1]);
    cr_assert(row->data == (void *)(bytes + 16), "a view's address is %p, expected %p", row->data,
              (void *)(bytes + 16));
    sheaf_tensor *inner = sheaf_view_1d(a, row, 4, 16);
    cr_assert(inner->data == (void *)(bytes + 20) && inner->view_offs == 80, "a view of a view is off");
}
