/* The arena: memory that is reused, bounded, and clean when an allocation fails. */
#include "tensor/tensor.h"
#include "tests/support/support.h"

static sheaf_arena *new_arena(size_t chunk) {
    sheaf_arena *a;
    expect_ok(sheaf_arena_new(chunk, &a));
    return a;
}

static bool is_zero(const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (p[i]) return false;
    }
    return true;
}

Test(arena, gives_zeroed_aligned_memory, .timeout = 10) {
    rng r = rng_start("arena");
    sheaf_arena *a = new_arena(256);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 300; i++) {
            size_t size = (size_t)rng_below(&r, 700);
            unsigned char *p = sheaf_arena_alloc(a, size);
            cr_assert(p != NULL && (uintptr_t)p % 16 == 0, "%p for %zu bytes", (void *)p, size);
            cr_assert(is_zero(p, size), "%zu bytes are not all zero", size);
            memset(p, 0xab, size);
        }
        sheaf_arena_reset(a);
        expect_int(sheaf_arena_used(a), 0);
    }
    sheaf_arena_free(a);
}

/* The same requests in three rhythms; the second and later rounds must find all they need. */
static sheaf_status use_in_rhythms(void *ctx) {
    sheaf_arena *a = ctx;
    static const size_t rhythms[3][4] = {{24, 900, 24, 24}, {900, 24, 24, 24}, {24, 24, 24, 900}};
    for (int k = 0; k < 3; k++) {
        sheaf_arena_reset(a);
        for (int i = 0; i < 40; i++) {
            if (!sheaf_arena_alloc(a, rhythms[k][i % 4])) return sheaf_arena_status(a);
        }
    }
    return SHEAF_OK;
}

Test(arena, memory_is_bounded_by_the_largest_use, .timeout = 10) {
    sheaf_arena *a = new_arena(128);
    expect_ok(use_in_rhythms(a));
    expect_ok(use_in_rhythms(a));
    expect_int(count_allocations(use_in_rhythms, a), 0);
    sheaf_arena_free(a);
}

Test(arena, lists_and_finds_its_tensors_in_order, .timeout = 10) {
    sheaf_arena *a = new_arena(512);
    for (int i = 0; i < 50; i++) {
        sheaf_set_name(sheaf_new_1d(a, SHEAF_F32, i + 1), "t%d", i);
        sheaf_arena_alloc(a, 40); /* other memory in between is no tensor */
    }
    int n = 0;
    for (sheaf_tensor *t = sheaf_arena_next(a, NULL); t; t = sheaf_arena_next(a, t)) expect_int(t->ne[0], ++n);
    expect_int(n, 50);
    expect_int(sheaf_arena_find(a, "t17")->ne[0], 18);
    cr_assert(sheaf_arena_find(a, "none") == NULL, "found what is not there");
    sheaf_arena_reset(a);
    cr_assert(sheaf_arena_next(a, NULL) == NULL, "tensors survive a reset");
    sheaf_arena_free(a);
}

Test(arena, keeps_its_first_error, .timeout = 10) {
    sheaf_arena *a = new_arena(512);
    expect_ok(sheaf_arena_status(a));
    sheaf_tensor *w = sheaf_set_name(sheaf_new_2d(a, SHEAF_F32, 4, 4), "w");
    sheaf_tensor *x = sheaf_new_2d(a, SHEAF_F32, 5, 1);
    cr_assert(sheaf_mul_mat(a, w, x) == NULL, "shapes that do not fit made a node");
    cr_assert(sheaf_add(a, NULL, x) == NULL, "a NULL source made a node");
    sheaf_error_clear();
    expect_status(sheaf_arena_status(a), SHEAF_E_SHAPE);
    expect_error("mul_mat: 'w' [4, 4]");
    sheaf_arena_reset(a);
    expect_ok(sheaf_arena_status(a));
    cr_assert(sheaf_add(a, NULL, NULL) == NULL, "a NULL source made a node");
    expect_status(sheaf_arena_status(a), SHEAF_E_ARGUMENT);
    sheaf_arena_free(a);
    sheaf_arena_free(NULL);
}

Test(arena, sizes_that_wrap_are_errors, .timeout = 10) {
    sheaf_arena *a;
    expect_status(sheaf_arena_new(SIZE_MAX, &a), SHEAF_E_ARGUMENT);
    a = new_arena(64);
    size_t huge[] = {SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 16, SIZE_MAX / 2 + 1};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        cr_assert(sheaf_arena_alloc(a, huge[i]) == NULL, "%zu bytes were given", huge[i]);
        expect_status(sheaf_arena_status(a), SHEAF_E_NO_MEMORY);
    }
    cr_assert(sheaf_arena_alloc(a, 8) != NULL, "a small request fails after a large one");
    sheaf_arena_free(a);
}

static sheaf_status build_and_free(void *ctx) {
    (void)ctx;
    sheaf_arena *a;
    sheaf_status s = sheaf_arena_new(256, &a);
    if (s) return s;
    for (int i = 0; i < 30; i++) sheaf_new_1d(a, SHEAF_F32, i);
    s = sheaf_arena_status(a);
    sheaf_arena_free(a);
    return s;
}

Test(arena, survives_every_failed_allocation, .timeout = 30) {
    int n = fail_each_allocation(build_and_free, NULL);
    cr_assert(n > 10, "%d allocations are too few to mean anything", n);
}
