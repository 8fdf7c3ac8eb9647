/* Every allocation of the library, with a hook in front of it.
 *
 * Owns: the hook. Tests use it to fail each allocation in turn and to count those of a token; it
 * costs one relaxed load when it is not set. Does not pool: arenas do (tensor/arena.c). */
#include "tensor/status.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE = 64, HUGE_PAGE = 2 * 1024 * 1024 };

typedef bool (*allow_fn)(void *ctx, size_t size);

static _Atomic(allow_fn) hook;
static _Atomic(void *) hook_ctx;

static bool allowed(size_t size) {
    allow_fn allow = atomic_load_explicit(&hook, memory_order_acquire);
    if (!allow) return true;
    return allow(atomic_load_explicit(&hook_ctx, memory_order_relaxed), size);
}

void sheaf_alloc_hook(bool (*allow)(void *ctx, size_t size), void *ctx) {
    atomic_store_explicit(&hook, (allow_fn)NULL, memory_order_release);
    atomic_store_explicit(&hook_ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&hook, allow, memory_order_release);
}

/* Sizes above PTRDIFF_MAX are refused here: glibc would warn, a sanitizer would stop the program. */
void *sheaf_malloc(size_t size) {
    if (size > PTRDIFF_MAX || !allowed(size)) return NULL;
    return malloc(size ? size : 1);
}

void *sheaf_calloc(size_t count, size_t size) {
    size_t total;
    if (sheaf_mul_overflow(count, size, &total) || total > PTRDIFF_MAX || !allowed(total)) return NULL;
    return calloc(1, total ? total : 1);
}

void *sheaf_realloc(void *p, size_t size) {
    if (size > PTRDIFF_MAX || !allowed(size)) return NULL;
    return realloc(p, size ? size : 1);
}

void *sheaf_aligned_alloc(size_t alignment, size_t size) {
    void *p = NULL;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) return NULL; /* a sanitizer would stop the program */
    if (size > PTRDIFF_MAX || !allowed(size)) return NULL;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    if (posix_memalign(&p, alignment, size ? size : 1)) return NULL;
    return p;
}

void *sheaf_pages_alloc(size_t size) {
    bool huge = size >= 2 * (size_t)HUGE_PAGE;
    void *p = sheaf_aligned_alloc(huge ? HUGE_PAGE : LINE, size);
    if (p && huge) madvise(p, size, MADV_HUGEPAGE);
    return p;
}

char *sheaf_strdup(const char *s) {
    size_t n = strlen(s) + 1;
    char *copy = sheaf_malloc(n);
    if (copy) memcpy(copy, s, n);
    return copy;
}

void sheaf_free(void *p) { free(p); }

bool sheaf_align_up(size_t size, size_t align, size_t *out) {
    size_t sum;
    if (align == 0 || (align & (align - 1)) != 0) return false;
    if (sheaf_add_overflow(size, align - 1, &sum)) return false;
    *out = sum & ~(align - 1);
    return true;
}
