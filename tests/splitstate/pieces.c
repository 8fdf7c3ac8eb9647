/* Shards by pieces: cut, glued, and read by any byte range. */
#include "support.h"

enum { MAX_BYTES = 1 << 16 };

static size_t total_bytes(sheaf_type type, const int64_t ne[4]) {
    return sheaf_row_bytes(type, ne[0]) * (size_t)(ne[1] * ne[2] * ne[3]);
}

/* The slow obvious reference: does device hold the block at byte `at`, and where? -1: no. */
static int64_t where(const sheaf_layout *l, int device, sheaf_type type, const int64_t ne[4], size_t at) {
    size_t block_bytes = sheaf_type_bytes(type);
    int64_t blocks0 = ne[0] / sheaf_type_block(type), block = (int64_t)(at / block_bytes);
    int64_t i[4] = {block % blocks0, block / blocks0 % ne[1], block / blocks0 / ne[1] % ne[2],
                    block / blocks0 / ne[1] / ne[2]};
    int64_t local[4];
    sheaf_layout_local_ne(l, device, ne, local);
    if (l->kind == SHEAF_AXIS) {
        int64_t scale = l->axis == 0 ? sheaf_type_block(type) : 1;
        int64_t k = sheaf_layout_local_index(l, device, i[l->axis] * scale);
        if (k < 0) return -1;
        i[l->axis] = k / scale;
    }
    int64_t row = local[0] / sheaf_type_block(type);
    return (((i[3] * local[2] + i[2]) * local[1] + i[1]) * row + i[0]) * (int64_t)block_bytes +
           (int64_t)(at % block_bytes);
}

static void check_device(rng *r, const sheaf_layout *l, int device, sheaf_type type, const int64_t ne[4], size_t bytes,
                         const unsigned char *whole, unsigned char *shard) {
    int64_t local[4];
    sheaf_layout_local_ne(l, device, ne, local);
    memset(shard, 0xee, MAX_BYTES);
    sheaf_pieces w;
    sheaf_piece p;
    size_t sum = 0, last = 0;
    sheaf_pieces_begin(&w, l, device, type, ne, 0, bytes);
    while (sheaf_pieces_next(&w, &p)) {
        cr_assert(p.global + p.bytes <= bytes && p.global >= last && p.bytes > 0, "[%zu, +%zu) of %zu", p.global,
                  p.bytes, bytes);
        memcpy(shard + p.local, whole + p.global, p.bytes);
        last = p.global + p.bytes;
        sum += p.bytes;
    }
    size_t expect = local[0] == 0 ? 0 : total_bytes(type, local);
    cr_assert_eq(sum, expect, "device %d: %zu bytes, shard has %zu", device, sum, expect);
    /* any range, read back from the shard, is that range of the whole where the device has it */
    for (int k = 0; k < 6; k++) {
        size_t begin = (size_t)below(r, (int64_t)bytes), size = (size_t)below(r, (int64_t)(bytes - begin) + 1);
        size_t covered = 0, held = 0;
        sheaf_pieces_begin(&w, l, device, type, ne, begin, size);
        while (sheaf_pieces_next(&w, &p)) {
            cr_assert(p.global >= begin && p.global + p.bytes <= begin + size);
            cr_assert_eq(memcmp(shard + p.local, whole + p.global, p.bytes), 0, "[%zu, +%zu)", p.global, p.bytes);
            covered += p.bytes;
        }
        for (size_t at = begin; at < begin + size; at++) {
            int64_t to = where(l, device, type, ne, at);
            held += to >= 0;
            if (to >= 0) cr_assert_eq(shard[to], whole[at], "byte %zu at %" PRId64, at, to);
        }
        cr_assert_eq(covered, held, "[%zu, +%zu): %zu bytes walked, %zu held", begin, size, covered, held);
    }
}

Test(pieces, shards_glued_equal_the_original, .timeout = 120) {
    static const sheaf_type types[] = {SHEAF_F32, SHEAF_F16, SHEAF_I8, SHEAF_Q4_1, SHEAF_Q8_0, SHEAF_Q4_K};
    static unsigned char whole[MAX_BYTES], shard[MAX_BYTES], glued[MAX_BYTES];
    rng r = {0xb10c};
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 14, &a), SHEAF_OK);
    for (int round = 0; round < 400; round++) {
        sheaf_arena_reset(a);
        sheaf_type type = types[below(&r, 6)];
        int n_devices = 1 + (int)below(&r, 5), axis = (int)below(&r, 4);
        int64_t block = sheaf_type_block(type),
                ne[4] = {block * (1 + below(&r, 3)), 1 + below(&r, 3), 1 + below(&r, 3), 1 + below(&r, 2)};
        ne[axis] = axis == 0 ? block * (1 + below(&r, 5)) : 1 + below(&r, 7);
        sheaf_layout l = random_cut(&r, a, axis, ne[axis], axis == 0 ? block : 1, n_devices);
        size_t bytes = total_bytes(type, ne);
        cr_assert_leq(bytes, sizeof whole);
        for (size_t i = 0; i < bytes; i++) whole[i] = (unsigned char)next_random(&r);
        memset(glued, 0x11, bytes);
        for (int d = 0; d < n_devices; d++) {
            check_device(&r, &l, d, type, ne, bytes, whole, shard);
            sheaf_pieces w;
            sheaf_piece p;
            sheaf_pieces_begin(&w, &l, d, type, ne, 0, bytes);
            while (sheaf_pieces_next(&w, &p)) memcpy(glued + p.global, shard + p.local, p.bytes);
        }
        char text[256];
        cr_assert_eq(memcmp(glued, whole, bytes), 0, "%s of %s", sheaf_type_name(type),
                     sheaf_layout_text(&l, text, sizeof text));
    }
    sheaf_arena_free(a);
}

/* Case A06: three unequal segments over two devices; whole, a third, one row, a range across a border. */
Test(pieces, walk_a_fused_tensor, .timeout = 60) {
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 12, &a), SHEAF_OK);
    sheaf_layout l = layout_of(a, "A0 4:0 2:1 2:0 1:1 2:0 1:1", 2);
    int64_t ne[4] = {12, 2, 1, 1};
    static const struct {
        int device;
        size_t begin, size;
        const char *expect;
    } rows[] = {
        {0, 0, 24, "0>0+4 6>4+2 9>6+2 12>8+4 18>12+2 21>14+2 "},
        {1, 0, 24, "4>0+2 8>2+1 11>3+1 16>4+2 20>6+1 23>7+1 "},
        {0, 12, 12, "12>8+4 18>12+2 21>14+2 "},
        {1, 5, 4, "5>1+1 8>2+1 "},
        {0, 3, 4, "3>3+1 6>4+1 "},
        {0, 4, 2, ""},
        {1, 0, 0, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[256] = "";
        sheaf_pieces w;
        sheaf_piece p;
        sheaf_pieces_begin(&w, &l, rows[i].device, SHEAF_I8, ne, rows[i].begin, rows[i].size);
        while (sheaf_pieces_next(&w, &p)) {
            snprintf(text + strlen(text), sizeof text - strlen(text), "%zu>%zu+%zu ", p.global, p.local, p.bytes);
        }
        cr_assert_str_eq(text, rows[i].expect, "row %zu: '%s', not '%s'", i, text, rows[i].expect);
    }
    sheaf_arena_free(a);
}
