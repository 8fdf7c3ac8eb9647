/* Buffers of any device: allocation, placing tensors, and moving their bytes.
 *
 * Arguments are checked here once; a device's own functions may rely on ranges inside the tensor and
 * on a buffer that exists. Also owns the plain host's memory, which is no device's. */
#include "backends/backend.h"

#include <string.h>

/* --- allocation ----------------------------------------------------------------------------------- */

sheaf_status sheaf_buffer_alloc(sheaf_buffer_type *t, size_t size, sheaf_usage usage, sheaf_buffer **out) {
    *out = NULL;
    if (t->max_size && size > t->max_size)
        return sheaf_fail(SHEAF_E_NO_MEMORY, "allocating %zu bytes of %s: one buffer holds at most %zu", size, t->name,
                          t->max_size);
    sheaf_status s = t->iface->alloc(t, size, out);
    if (!s) (*out)->usage = usage;
    return s;
}

void sheaf_buffer_free(sheaf_buffer *b) {
    if (b) b->iface->free(b);
}

sheaf_status sheaf_buffer_clear(sheaf_buffer *b, uint8_t value) { return b->iface->clear(b, value); }

size_t sheaf_alloc_size(sheaf_buffer_type *t, const sheaf_tensor *x) {
    return t->iface->alloc_size ? t->iface->alloc_size(t, x) : sheaf_nbytes(x);
}

/* --- placing ---------------------------------------------------------------------------------------- */

sheaf_status sheaf_tensor_place(sheaf_buffer *b, sheaf_tensor *t, void *addr) {
    size_t size = sheaf_alloc_size(b->type, t), align = b->type->alignment ? b->type->alignment : 1;
    uintptr_t at = (uintptr_t)addr, base = (uintptr_t)b->base;
    if (t->data) return sheaf_fail(SHEAF_E_ARGUMENT, "placing %s: it already has a place", t->name);
    if (t->view_src) return sheaf_fail(SHEAF_E_ARGUMENT, "placing %s: it is a view", t->name);
    if (at < base || at - base > b->size || size > b->size - (at - base))
        return sheaf_fail(SHEAF_E_RANGE, "placing %s: %zu bytes do not fit at their place in %s", t->name, size,
                          b->type->name);
    if (size && at % align)
        return sheaf_fail(SHEAF_E_ARGUMENT, "placing %s: its place is not aligned to %zu bytes", t->name, align);
    t->buffer = b;
    t->data = addr;
    if (!b->iface->init_tensor) return SHEAF_OK;
    sheaf_status s = b->iface->init_tensor(b, t);
    if (s) t->buffer = NULL, t->data = NULL;
    return s;
}

sheaf_status sheaf_view_place(sheaf_tensor *view) {
    sheaf_tensor *root = view->view_src;
    if (!root) return sheaf_fail(SHEAF_E_ARGUMENT, "placing view %s: it is no view", view->name);
    if (!root->buffer)
        return sheaf_fail(SHEAF_E_ARGUMENT, "placing view %s: %s has no place yet", view->name, root->name);
    view->buffer = root->buffer;
    view->data = root->data ? (char *)root->data + view->view_offs : NULL;
    if (!view->buffer->iface->init_tensor) return SHEAF_OK;
    sheaf_status s = view->buffer->iface->init_tensor(view->buffer, view);
    if (s) view->buffer = NULL, view->data = NULL;
    return s;
}

/* Sum of what the arena's unplaced tensors take; the number of them in *n. */
static sheaf_status arena_bytes(sheaf_arena *a, sheaf_buffer_type *t, size_t *bytes, int *n) {
    sheaf_linear l = {.alignment = t->alignment ? t->alignment : 1};
    *n = 0;
    for (sheaf_tensor *x = NULL; (x = sheaf_arena_next(a, x));) {
        size_t offset;
        if (x->data || x->buffer || x->view_src) continue;
        sheaf_status s = sheaf_linear_place(&l, sheaf_alloc_size(t, x), &offset);
        if (s) return sheaf_error_context(s, "placing %s", x->name);
        ++*n;
    }
    *bytes = l.used;
    return SHEAF_OK;
}

static sheaf_status place_in(sheaf_arena *a, sheaf_buffer *b) {
    sheaf_linear l = {.alignment = b->type->alignment ? b->type->alignment : 1};
    for (sheaf_tensor *x = NULL; (x = sheaf_arena_next(a, x));) {
        size_t offset;
        if (x->data || x->buffer || x->view_src) continue;
        sheaf_status s = sheaf_linear_place(&l, sheaf_alloc_size(b->type, x), &offset);
        if (!s) s = sheaf_tensor_place(b, x, b->base ? (char *)b->base + offset : NULL);
        if (s) return s;
    }
    for (sheaf_tensor *x = NULL; (x = sheaf_arena_next(a, x));) {
        if (!x->view_src || x->buffer || !x->view_src->buffer) continue;
        sheaf_status s = sheaf_view_place(x);
        if (s) return s;
    }
    return SHEAF_OK;
}

/* Takes back what place_in gave, so that nothing points into a buffer that is freed. */
static void unplace(sheaf_arena *a, const sheaf_buffer *b) {
    for (sheaf_tensor *x = NULL; (x = sheaf_arena_next(a, x));)
        if (x->buffer == b) x->buffer = NULL, x->data = NULL;
}

sheaf_status sheaf_arena_place_all(sheaf_arena *a, sheaf_buffer_type *t, sheaf_usage usage, sheaf_buffer **out) {
    size_t bytes = 0;
    int n = 0;
    *out = NULL;
    sheaf_status s = arena_bytes(a, t, &bytes, &n);
    if (s || n == 0) return s;
    s = sheaf_buffer_alloc(t, bytes, usage, out);
    if (s) return s;
    s = place_in(a, *out);
    if (!s) return SHEAF_OK;
    unplace(a, *out);
    sheaf_buffer_free(*out);
    *out = NULL;
    return s;
}

/* --- bytes ------------------------------------------------------------------------------------------- */

/* The tensor that owns t's bytes, the buffer, and the offset in the owner of t's own [offset, offset+size). */
static sheaf_status find_bytes(const char *what, const sheaf_tensor *t, size_t *offset, size_t size,
                               const sheaf_tensor **owner) {
    size_t n = sheaf_nbytes(t);
    if (*offset > n || size > n - *offset)
        return sheaf_fail(SHEAF_E_RANGE, "%s %s: %zu bytes from %zu, it has %zu", what, t->name, size, *offset, n);
    *owner = t->view_src ? t->view_src : t;
    if (t->view_src) *offset += t->view_offs;
    if (!(*owner)->buffer) return sheaf_fail(SHEAF_E_ARGUMENT, "%s %s: it has no place", what, t->name);
    return SHEAF_OK;
}

sheaf_status sheaf_tensor_set(sheaf_tensor *t, const void *src, size_t offset, size_t size) {
    const sheaf_tensor *owner;
    sheaf_status s = find_bytes("setting", t, &offset, size, &owner);
    if (s || size == 0) return s;
    return owner->buffer->iface->set(owner->buffer, (sheaf_tensor *)owner, src, offset, size);
}

sheaf_status sheaf_tensor_get(const sheaf_tensor *t, void *dst, size_t offset, size_t size) {
    const sheaf_tensor *owner;
    sheaf_status s = find_bytes("reading", t, &offset, size, &owner);
    if (s || size == 0) return s;
    return owner->buffer->iface->get(owner->buffer, owner, dst, offset, size);
}

/* Bytes from the first to behind the last of `rows` pieces; false when it wraps. */
static bool extent(size_t stride, size_t row_bytes, size_t rows, size_t *out) {
    size_t last;
    if (rows == 0) return *out = 0, true;
    return !sheaf_mul_overflow(stride, rows - 1, &last) && !sheaf_add_overflow(last, row_bytes, out);
}

static sheaf_status find_2d(const char *what, const sheaf_tensor *t, size_t *offset, size_t stride, size_t row_bytes,
                            size_t rows, const sheaf_tensor **owner) {
    size_t size;
    if (!extent(stride, row_bytes, rows, &size)) return sheaf_fail(SHEAF_E_RANGE, "%s %s: sizes wrap", what, t->name);
    return find_bytes(what, t, offset, size, owner);
}

sheaf_status sheaf_tensor_set_2d(sheaf_tensor *t, const void *src, size_t src_stride, size_t offset, size_t stride,
                                 size_t row_bytes, size_t rows) {
    const sheaf_tensor *owner;
    sheaf_status s = find_2d("setting", t, &offset, stride, row_bytes, rows, &owner);
    if (s || rows == 0 || row_bytes == 0) return s;
    sheaf_buffer *b = owner->buffer;
    sheaf_tensor *o = (sheaf_tensor *)owner;
    if (b->iface->set_2d) return b->iface->set_2d(b, o, src, src_stride, offset, stride, row_bytes, rows);
    for (size_t i = 0; i < rows && !s; i++)
        s = b->iface->set(b, o, (const char *)src + i * src_stride, offset + i * stride, row_bytes);
    return s;
}

sheaf_status sheaf_tensor_get_2d(const sheaf_tensor *t, void *dst, size_t dst_stride, size_t offset, size_t stride,
                                 size_t row_bytes, size_t rows) {
    const sheaf_tensor *owner;
    sheaf_status s = find_2d("reading", t, &offset, stride, row_bytes, rows, &owner);
    if (s || rows == 0 || row_bytes == 0) return s;
    sheaf_buffer *b = owner->buffer;
    if (b->iface->get_2d) return b->iface->get_2d(b, owner, dst, dst_stride, offset, stride, row_bytes, rows);
    for (size_t i = 0; i < rows && !s; i++)
        s = b->iface->get(b, owner, (char *)dst + i * dst_stride, offset + i * stride, row_bytes);
    return s;
}

static const void *host_address(const sheaf_tensor *t) {
    return t->buffer && t->buffer->type->is_host ? t->data : NULL;
}

/* Through a bounded piece of host memory: never a second copy of a large tensor. */
static sheaf_status copy_staged(const sheaf_tensor *from, sheaf_tensor *to, size_t n) {
    enum { STAGE = 4 << 20 };
    size_t stage = n < STAGE ? n : STAGE;
    void *tmp = sheaf_malloc(stage);
    if (!tmp) return sheaf_fail(SHEAF_E_NO_MEMORY, "copying %s: no memory for %zu bytes", from->name, stage);
    sheaf_status s = SHEAF_OK;
    for (size_t at = 0; at < n && !s; at += stage) {
        size_t size = n - at < stage ? n - at : stage;
        s = sheaf_tensor_get(from, tmp, at, size);
        if (!s) s = sheaf_tensor_set(to, tmp, at, size);
    }
    sheaf_free(tmp);
    return s;
}

sheaf_status sheaf_tensor_copy(const sheaf_tensor *from, sheaf_tensor *to) {
    size_t n = sheaf_nbytes(from);
    if (from->type != to->type || !sheaf_same_shape(from, to) || !sheaf_is_contiguous(from) || !sheaf_is_contiguous(to))
        return sheaf_fail(SHEAF_E_SHAPE, "copying %s to %s: not the same contiguous bytes", from->name, to->name);
    if (n == 0 || from == to) return SHEAF_OK;
    if (host_address(from)) return sheaf_tensor_set(to, host_address(from), 0, n);
    return copy_staged(from, to, n);
}

void *sheaf_host_write(sheaf_tensor *t, size_t offset, size_t size) {
    size_t n = sheaf_nbytes(t);
    if (!host_address(t) || offset > n || size > n - offset) return NULL;
    return (char *)t->data + offset;
}

/* --- plain host memory ---------------------------------------------------------------------------------- */

static void host_free(sheaf_buffer *b) {
    sheaf_free(b->base);
    sheaf_free(b);
}

static sheaf_status host_set(sheaf_buffer *b, sheaf_tensor *t, const void *src, size_t offset, size_t size) {
    (void)b;
    memcpy((char *)t->data + offset, src, size);
    return SHEAF_OK;
}

static sheaf_status host_get(sheaf_buffer *b, const sheaf_tensor *t, void *dst, size_t offset, size_t size) {
    (void)b;
    memcpy(dst, (const char *)t->data + offset, size);
    return SHEAF_OK;
}

static sheaf_status host_clear(sheaf_buffer *b, uint8_t value) {
    if (b->size) memset(b->base, value, b->size);
    return SHEAF_OK;
}

static sheaf_status host_alloc(sheaf_buffer_type *t, size_t size, sheaf_buffer **out) {
    static const sheaf_buffer_iface iface = {.free = host_free, .set = host_set, .get = host_get, .clear = host_clear};
    sheaf_buffer *b = sheaf_calloc(1, sizeof *b);
    void *base = b && size ? sheaf_aligned_alloc(64, size) : NULL;
    if (!b || (size && !base)) {
        sheaf_free(b);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "allocating %zu bytes of host memory: no memory", size);
    }
    *b = (sheaf_buffer){.iface = &iface, .type = t, .base = base, .size = size};
    *out = b;
    return SHEAF_OK;
}

sheaf_buffer_type *sheaf_host_buffer_type(void) {
    static const sheaf_buffer_type_iface iface = {.alloc = host_alloc};
    /* Never written: one struct for the process, like a constant. */
    static sheaf_buffer_type host = {.iface = &iface, .name = "host", .alignment = 64, .pack_rows = 1, .is_host = true};
    return &host;
}
