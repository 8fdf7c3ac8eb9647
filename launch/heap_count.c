/* Counts malloc-family calls of the whole process, for the claim of zero allocations per token.
 *
 * The definitions here stand in front of the C library's for every object of the process, and hand on to it by the
 * names that glibc keeps for that purpose. Under a sanitizer, which needs those names itself, nothing is
 * counted. (Valgrind replaces them like the library's own.) */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "launch/launch.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define COUNTED 0
#endif
#endif
#ifndef COUNTED
#ifdef __GLIBC__
#define COUNTED 1
#else
#define COUNTED 0
#endif
#endif

#if COUNTED
static atomic_llong calls;

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static void count(void) { atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed); }

void *malloc(size_t n) {
    count();
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
    count();
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
    count();
    return __libc_realloc(p, n);
}
void *memalign(size_t align, size_t n) {
    count();
    return __libc_memalign(align, n);
}
void *aligned_alloc(size_t align, size_t n) {
    count();
    return __libc_memalign(align, n);
}
int posix_memalign(void **out, size_t align, size_t n) {
    if (align < sizeof(void *) || (align & (align - 1))) return EINVAL;
    count();
    *out = __libc_memalign(align, n);
    return *out || !n ? 0 : ENOMEM;
}
void free(void *p) { __libc_free(p); }

int64_t heap_calls(void) { return atomic_load_explicit(&calls, memory_order_relaxed); }
#else
int64_t heap_calls(void) { return -1; }
#endif
