/* The free list: case C18 and a model of every byte. */
#include "tensor/freelist_internal.h"
#include "tests/support/support.h"

static void check(const sheaf_freelist *f, const char *step) {
    const char *wrong = sheaf_freelist_check(f);
    cr_assert(wrong == NULL, "after %s: %s", step, wrong);
}

/* Every second unit of 10 bytes free, as many blocks as the array has room for. */
static void fill_to_capacity(sheaf_freelist *f) {
    cr_assert(sheaf_freelist_reset(f, 100000), "out of memory");
    sheaf_freelist_take(f, 0, 100000);
    check(f, "taking all");
    for (size_t i = 0; f->count < f->capacity || f->capacity < 16; i++) {
        cr_assert(sheaf_freelist_give(f, 20 * i, 10), "out of memory");
        check(f, "giving");
    }
    expect_int(f->count, f->capacity);
}

/* Case C18: a full list loses its first, a middle and its last block. */
Test(freelist, full_list_loses_blocks_anywhere, .timeout = 20) {
    sheaf_freelist f = {0};
    for (int where = 0; where < 3; where++) {
        fill_to_capacity(&f);
        int32_t n = f.count, i = where == 0 ? 0 : where == 1 ? n / 2 : n - 1;
        size_t offset = f.blocks[i].offset, before = i > 0 ? f.blocks[i - 1].offset : 0;
        expect_int(sheaf_freelist_take(&f, i, 10), offset);
        check(&f, "removing a block");
        expect_int(f.count, n - 1);
        if (i > 0) expect_int(f.blocks[i - 1].offset, before);
        cr_assert(sheaf_freelist_give(&f, offset, 10), "out of memory");
        check(&f, "giving it back");
        expect_int(f.count, n);
        expect_int(f.blocks[i].offset, offset);
    }
    sheaf_freelist_free(&f);
}

Test(freelist, neighbours_become_one_block, .timeout = 20) {
    static const size_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
        sheaf_freelist f = {0};
        cr_assert(sheaf_freelist_reset(&f, 30), "out of memory");
        sheaf_freelist_take(&f, 0, 30);
        expect_int(f.count, 0);
        for (int i = 0; i < 3; i++) {
            cr_assert(sheaf_freelist_give(&f, 10 * orders[k][i], 10), "out of memory");
            check(&f, "giving");
        }
        expect_int(f.count, 1);
        expect_int(f.blocks[0].size, 30);
        sheaf_freelist_free(&f);
    }
}

/* Random takes and gives against a map of bytes. */
Test(freelist, agrees_with_a_map_of_bytes, .timeout = 60) {
    enum { N = 200 };
    rng r = rng_start("freelist");
    for (int round = 0; round < 50; round++) {
        sheaf_freelist f = {0};
        bool used[N] = {false};
        cr_assert(sheaf_freelist_reset(&f, N), "out of memory");
        for (int step = 0; step < 300; step++) {
            size_t at = (size_t)rng_below(&r, N), end = at;
            if (rng_chance(&r, 0.5f) && f.count > 0) {
                int32_t i = (int32_t)rng_below(&r, f.count);
                size_t size = 1 + (size_t)rng_below(&r, (int64_t)f.blocks[i].size);
                size_t offset = sheaf_freelist_take(&f, i, size);
                for (size_t b = offset; b < offset + size; b++) {
                    cr_assert(!used[b], "byte %zu was given twice", b);
                    used[b] = true;
                }
            } else {
                while (end < N && used[end] && end - at < 20) used[end++] = false;
                if (end > at) cr_assert(sheaf_freelist_give(&f, at, end - at), "out of memory");
            }
            check(&f, "a step");
        }
        size_t free_bytes = 0, unused = 0;
        for (int32_t i = 0; i < f.count; i++) free_bytes += f.blocks[i].size;
        for (int b = 0; b < N; b++) unused += !used[b];
        expect_int(free_bytes, unused);
        sheaf_freelist_free(&f);
    }
}

Test(freelist, checker_finds_what_is_wrong, .timeout = 20) {
    sheaf_free_block touching[] = {{0, 10}, {10, 5}}, order[] = {{20, 5}, {0, 5}}, empty[] = {{0, 0}},
                     wraps[] = {{SIZE_MAX - 1, 10}};
    const sheaf_freelist bad[] = {{touching, 2, 2}, {order, 2, 2}, {empty, 1, 1}, {wraps, 1, 1}, {touching, 2, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert(sheaf_freelist_check(&bad[i]) != NULL, "list %zu passes", i);
    }
}
