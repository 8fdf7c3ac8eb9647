/* Tensor headers: making leafs, naming, and what can be asked of one.
 *
 * Owns nothing: headers belong to their arena, bytes to a buffer. Views are in views.c, nodes in
 * ops.c. */
#include "tensor/arena_internal.h"
#include "tensor/ops_internal.h"

#include <stdio.h>
#include <string.h>

/* --- shapes and strides --- */

/* Contiguous strides of a shape. False: a negative or partial row, or a size that wraps. */
static bool set_strides(sheaf_tensor *t) {
    size_t row = sheaf_row_bytes(t->type, t->ne[0]), bytes;
    if (row == SIZE_MAX) return false;
    t->nb[0] = sheaf_type_bytes(t->type);
    t->nb[1] = row;
    for (int i = 2; i < SHEAF_MAX_DIMS; i++) {
        if (sheaf_mul_overflow(t->nb[i - 1], (size_t)t->ne[i - 1], &t->nb[i])) return false;
    }
    return !sheaf_mul_overflow(t->nb[3], (size_t)t->ne[3], &bytes) && bytes <= PTRDIFF_MAX;
}

static bool set_shape(sheaf_tensor *t, int n_dims, const int64_t *ne) {
    if (n_dims < 1 || n_dims > SHEAF_MAX_DIMS) return false;
    int64_t total = 1;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) t->ne[i] = i < n_dims ? ne[i] : 1;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (t->ne[i] < 0 || __builtin_mul_overflow(total, t->ne[i], &total)) return false;
    }
    return true;
}

bool sheaf_extent(sheaf_type type, const int64_t ne[4], const size_t nb[4], size_t *bytes) {
    size_t end = sheaf_type_bytes(type), steps, step;
    *bytes = 0;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (ne[i] < 0 || (i == 0 && ne[0] % sheaf_type_block(type) != 0)) return false;
        if (ne[i] == 0) return true;
    }
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        steps = (size_t)(i == 0 ? ne[0] / sheaf_type_block(type) : ne[i]) - 1;
        if (sheaf_mul_overflow(steps, nb[i], &step) || sheaf_add_overflow(end, step, &end)) return false;
    }
    *bytes = end;
    return true;
}

/* --- leafs --- */

sheaf_tensor *sheaf_new(sheaf_arena *a, sheaf_type type, int n_dims, const int64_t *ne) {
    sheaf_tensor shape = {.type = type};
    if (!a) return NULL;
    if (!sheaf_type_valid(type)) {
        return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_UNSUPPORTED, "new tensor: type %d is unknown", (int)type));
    }
    if (!set_shape(&shape, n_dims, ne) || !set_strides(&shape)) {
        char text[96] = "a shape";
        if (n_dims >= 1 && n_dims <= SHEAF_MAX_DIMS) sheaf_shape_text(&shape, text, sizeof text);
        return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_SHAPE, "new tensor: %s of %d dimensions and type %s cannot be",
                                              text, n_dims, sheaf_type_name(type)));
    }
    sheaf_tensor *t = sheaf_arena_tensor(a);
    if (!t) return NULL;
    t->type = type;
    memcpy(t->ne, shape.ne, sizeof t->ne);
    memcpy(t->nb, shape.nb, sizeof t->nb);
    return t;
}

sheaf_tensor *sheaf_new_1d(sheaf_arena *a, sheaf_type type, int64_t ne0) { return sheaf_new(a, type, 1, &ne0); }

sheaf_tensor *sheaf_new_2d(sheaf_arena *a, sheaf_type type, int64_t ne0, int64_t ne1) {
    int64_t ne[] = {ne0, ne1};
    return sheaf_new(a, type, 2, ne);
}

sheaf_tensor *sheaf_new_3d(sheaf_arena *a, sheaf_type type, int64_t ne0, int64_t ne1, int64_t ne2) {
    int64_t ne[] = {ne0, ne1, ne2};
    return sheaf_new(a, type, 3, ne);
}

sheaf_tensor *sheaf_new_4d(sheaf_arena *a, sheaf_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    int64_t ne[] = {ne0, ne1, ne2, ne3};
    return sheaf_new(a, type, 4, ne);
}

sheaf_tensor *sheaf_dup(sheaf_arena *a, const sheaf_tensor *t) {
    if (!t) return sheaf_missing_source(a, "dup", 0);
    return sheaf_new(a, t->type, SHEAF_MAX_DIMS, t->ne);
}

sheaf_tensor *sheaf_set_name(sheaf_tensor *t, const char *format, ...) {
    if (!t) return NULL;
    char fresh[SHEAF_MAX_NAME]; /* the arguments may point into the name itself */
    va_list args;
    va_start(args, format);
    vsnprintf(fresh, sizeof fresh, format, args);
    va_end(args);
    memcpy(t->name, fresh, strlen(fresh) + 1);
    return t;
}

sheaf_tensor *sheaf_set_flag(sheaf_tensor *t, uint32_t flags) {
    if (t) t->flags |= flags;
    return t;
}

/* --- asking --- */

int64_t sheaf_nelements(const sheaf_tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }

int64_t sheaf_nrows(const sheaf_tensor *t) { return t->ne[1] * t->ne[2] * t->ne[3]; }

size_t sheaf_nbytes(const sheaf_tensor *t) {
    size_t bytes;
    return sheaf_extent(t->type, t->ne, t->nb, &bytes) ? bytes : SIZE_MAX;
}

/* The stride of a dimension of one element (or of any, if the tensor is empty) moves nothing, so it
 * does not count. */
bool sheaf_is_contiguous(const sheaf_tensor *t) {
    size_t want = sheaf_type_bytes(t->type);
    if (sheaf_nelements(t) == 0) return true;
    if (t->ne[0] != sheaf_type_block(t->type) && t->nb[0] != want) return false;
    want *= (size_t)(t->ne[0] / sheaf_type_block(t->type));
    for (int i = 1; i < SHEAF_MAX_DIMS; i++) {
        if (t->ne[i] != 1 && t->nb[i] != want) return false;
        want *= (size_t)t->ne[i];
    }
    return true;
}

bool sheaf_rows_contiguous(const sheaf_tensor *t) { return t->nb[0] == sheaf_type_bytes(t->type); }

bool sheaf_is_permuted(const sheaf_tensor *t) {
    return t->nb[0] > t->nb[1] || t->nb[1] > t->nb[2] || t->nb[2] > t->nb[3];
}

bool sheaf_same_shape(const sheaf_tensor *x, const sheaf_tensor *y) { return memcmp(x->ne, y->ne, sizeof x->ne) == 0; }

bool sheaf_can_broadcast(const sheaf_tensor *small, const sheaf_tensor *big) {
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (small->ne[i] == big->ne[i]) continue;
        if (small->ne[i] == 0 || big->ne[i] % small->ne[i] != 0) return false;
    }
    return true;
}

sheaf_tensor *sheaf_root(sheaf_tensor *t) { return t->view_src ? t->view_src : t; }

const char *sheaf_shape_text(const sheaf_tensor *t, char *buf, size_t n) {
    int dims = SHEAF_MAX_DIMS;
    while (dims > 1 && t->ne[dims - 1] == 1) dims--;
    size_t used = 0;
    if (n == 0) return buf;
    buf[0] = 0;
    for (int i = 0; i < dims; i++) {
        int more =
            snprintf(buf + used, n - used, "%s%lld%s", i ? ", " : "[", (long long)t->ne[i], i == dims - 1 ? "]" : "");
        if (more < 0 || (size_t)more >= n - used) break; /* cut; still a string */
        used += (size_t)more;
    }
    return buf;
}
