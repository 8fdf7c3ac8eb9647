/* Views: headers that read bytes of another tensor with other shapes and strides.
 *
 *     root [................................]      view_src of every view, however deep
 *              t  [.................]              t->view_offs from the root
 *                    view [....]                   t->view_offs + offset
 *
 * A view of a view points at the root, so that who owns the bytes is one step away; src[0] keeps
 * what it was made from, which is what graphs order by. A view of a tensor that has data has data. */
#include "tensor/arena_internal.h"
#include "tensor/ops_internal.h"

#include <string.h>

sheaf_tensor *sheaf_alias(sheaf_arena *a, const char *op, sheaf_tensor *t, const int64_t ne[4], const size_t nb[4],
                          size_t offset) {
    size_t bytes, end, available = sheaf_nbytes(t);
    if (!sheaf_extent(t->type, ne, nb, &bytes) || sheaf_add_overflow(bytes, offset, &end) || end > available) {
        char shape[96];
        sheaf_shape_text(&(sheaf_tensor){.ne = {ne[0], ne[1], ne[2], ne[3]}}, shape, sizeof shape);
        return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_RANGE, "%s: %s at byte %zu leaves the %zu bytes of '%s'", op,
                                              shape, offset, available, t->name));
    }
    sheaf_tensor *view = sheaf_arena_tensor(a);
    if (!view) return NULL;
    view->type = t->type;
    memcpy(view->ne, ne, sizeof view->ne);
    memcpy(view->nb, nb, sizeof view->nb);
    view->view_src = sheaf_root(t);
    view->view_offs = t->view_offs + offset;
    view->buffer = t->buffer;
    view->data = t->data ? (char *)t->data + offset : NULL;
    return view;
}

/* Strides from outside: whole blocks, or kernels would read at odd addresses. */
static bool whole_blocks(const sheaf_tensor *t, const size_t nb[4], size_t offset) {
    size_t block = sheaf_type_bytes(t->type);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (nb[i] % block != 0) return false;
    }
    return offset % block == 0;
}

sheaf_tensor *sheaf_view_4d(sheaf_arena *a, sheaf_tensor *t, const int64_t ne[4], const size_t nb[4], size_t offset) {
    if (!t) return sheaf_missing_source(a, "view", 0);
    if (!whole_blocks(t, nb, offset)) {
        return sheaf_arena_fail(a,
                                sheaf_fail(SHEAF_E_SHAPE, "view of '%s': strides or offset %zu are not whole %s blocks",
                                           t->name, offset, sheaf_type_name(t->type)));
    }
    sheaf_tensor *view = sheaf_alias(a, "view", t, ne, nb, offset);
    if (!view) return NULL;
    view->op = SHEAF_OP_VIEW;
    view->src[0] = t;
    return view;
}

sheaf_tensor *sheaf_view_3d(sheaf_arena *a, sheaf_tensor *t, int64_t ne0, int64_t ne1, int64_t ne2, size_t nb1,
                            size_t nb2, size_t offset) {
    if (!t) return sheaf_missing_source(a, "view", 0);
    size_t nb3;
    if (sheaf_mul_overflow(nb2, ne2 > 0 ? (size_t)ne2 : 1, &nb3)) {
        return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_RANGE, "view of '%s': strides wrap", t->name));
    }
    int64_t ne[] = {ne0, ne1, ne2, 1};
    size_t nb[] = {sheaf_type_bytes(t->type), nb1, nb2, nb3};
    return sheaf_view_4d(a, t, ne, nb, offset);
}

sheaf_tensor *sheaf_view_2d(sheaf_arena *a, sheaf_tensor *t, int64_t ne0, int64_t ne1, size_t nb1, size_t offset) {
    if (!t) return sheaf_missing_source(a, "view", 0);
    size_t nb2;
    if (sheaf_mul_overflow(nb1, ne1 > 0 ? (size_t)ne1 : 1, &nb2)) {
        return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_RANGE, "view of '%s': strides wrap", t->name));
    }
    return sheaf_view_3d(a, t, ne0, ne1, 1, nb1, nb2, offset);
}

sheaf_tensor *sheaf_view_1d(sheaf_arena *a, sheaf_tensor *t, int64_t ne0, size_t offset) {
    if (!t) return sheaf_missing_source(a, "view", 0);
    size_t row = sheaf_row_bytes(t->type, ne0);
    if (row == SIZE_MAX) {
        return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_SHAPE, "view of '%s': %lld elements are not whole %s blocks",
                                              t->name, (long long)ne0, sheaf_type_name(t->type)));
    }
    return sheaf_view_2d(a, t, ne0, 1, row, offset);
}

sheaf_tensor *sheaf_reshape(sheaf_arena *a, sheaf_tensor *t, int n_dims, const int64_t *ne) {
    if (!t) return sheaf_missing_source(a, "reshape", 0);
    char from[96];
    int64_t full[SHEAF_MAX_DIMS] = {1, 1, 1, 1}, total = 1;
    bool fits = n_dims >= 1 && n_dims <= SHEAF_MAX_DIMS && sheaf_is_contiguous(t);
    for (int i = 0; fits && i < n_dims; i++) {
        full[i] = ne[i];
        fits = ne[i] >= 0 && !__builtin_mul_overflow(total, ne[i], &total);
    }
    size_t row = fits ? sheaf_row_bytes(t->type, full[0]) : SIZE_MAX;
    if (row == SIZE_MAX || total != sheaf_nelements(t)) {
        char to[96];
        sheaf_shape_text(&(sheaf_tensor){.ne = {full[0], full[1], full[2], full[3]}}, to, sizeof to);
        return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_SHAPE, "reshape of '%s': %s%s does not become %s", t->name,
                                              sheaf_is_contiguous(t) ? "" : "strided ",
                                              sheaf_shape_text(t, from, sizeof from), to));
    }
    size_t nb[SHEAF_MAX_DIMS] = {sheaf_type_bytes(t->type), row, row * (size_t)full[1],
                                 row * (size_t)full[1] * (size_t)full[2]};
    sheaf_tensor *view = sheaf_alias(a, "reshape", t, full, nb, 0);
    if (!view) return NULL;
    view->op = SHEAF_OP_RESHAPE;
    view->src[0] = t;
    return view;
}

sheaf_tensor *sheaf_reshape_1d(sheaf_arena *a, sheaf_tensor *t, int64_t ne0) { return sheaf_reshape(a, t, 1, &ne0); }

sheaf_tensor *sheaf_reshape_2d(sheaf_arena *a, sheaf_tensor *t, int64_t ne0, int64_t ne1) {
    int64_t ne[] = {ne0, ne1};
    return sheaf_reshape(a, t, 2, ne);
}

sheaf_tensor *sheaf_reshape_3d(sheaf_arena *a, sheaf_tensor *t, int64_t ne0, int64_t ne1, int64_t ne2) {
    int64_t ne[] = {ne0, ne1, ne2};
    return sheaf_reshape(a, t, 3, ne);
}

/* `to[i]`: where source dimension i goes. A block type keeps dimension 0: its elements have no
 * address of their own. */
static sheaf_tensor *reorder(sheaf_arena *a, sheaf_op op, sheaf_tensor *t, const int to[4]) {
    if (!t) return sheaf_missing_source(a, sheaf_op_name(op), 0);
    unsigned seen = 0;
    int64_t ne[SHEAF_MAX_DIMS] = {0};
    size_t nb[SHEAF_MAX_DIMS] = {0};
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (to[i] < 0 || to[i] >= SHEAF_MAX_DIMS) break;
        seen |= 1u << to[i];
        ne[to[i]] = t->ne[i];
        nb[to[i]] = t->nb[i];
    }
    if (seen != 15 || (to[0] != 0 && sheaf_type_is_quantized(t->type))) {
        return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_SHAPE, "%s of '%s' (%s): %d %d %d %d is no order for it",
                                              sheaf_op_name(op), t->name, sheaf_type_name(t->type), to[0], to[1], to[2],
                                              to[3]));
    }
    sheaf_tensor *view = sheaf_alias(a, sheaf_op_name(op), t, ne, nb, 0);
    if (!view) return NULL;
    view->op = op;
    view->src[0] = t;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) view->params.permute.dim[i] = to[i];
    return view;
}

sheaf_tensor *sheaf_permute(sheaf_arena *a, sheaf_tensor *t, int d0, int d1, int d2, int d3) {
    return reorder(a, SHEAF_OP_PERMUTE, t, (const int[]){d0, d1, d2, d3});
}

sheaf_tensor *sheaf_transpose(sheaf_arena *a, sheaf_tensor *t) {
    return reorder(a, SHEAF_OP_TRANSPOSE, t, (const int[]){1, 0, 2, 3});
}
