/* Encoders, byte for byte: rows that any language can make, hashed as another program encodes them
 * (tests/golden/make_encodings.py, which says how the numbers come about). */
#include "tensor/tensor.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 8, N = 512, MOST_BYTES = N * 4 };

static uint64_t mixed(uint64_t i) {
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* s / 8192, towards minus infinity as in the script. */
static int coarse(int s) { return s >= 0 ? s / 8192 : -((8191 - s) / 8192); }

static float element(int kind, int row, int i) {
    uint64_t z = mixed((uint64_t)((kind * ROWS + row) * N + i));
    int s = (int)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48)) - 131070;
    float x = (float)s;
    switch (kind) {
    case 1: return ldexpf(x, -21 + (int)((z >> 5) % 8));
    case 2: return i == 77 + row ? x * 0x1p-15f : 0;
    case 3: return row % 2 ? 0.25f : -0.25f;
    case 4: return (float)(coarse(s) * 13) * 0x1p-10f;
    case 5: return fabsf(x) * (row % 2 ? 0x1p-20f : -0x1p-20f);
    case 6: return ldexpf(x, -80);
    case 7: return i / 16 % 3 == 0 ? 0 : x * 0x1p-20f;
    default: return x * 0x1p-20f;
    }
}

static uint64_t fnv(const uint8_t *p, size_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static uint64_t encoded_hash(sheaf_type type, int kind, const float *importance) {
    static uint8_t bytes[ROWS * MOST_BYTES];
    float x[N];
    size_t row = sheaf_row_bytes(type, N);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < N; i++) x[i] = element(kind, r, i);
        expect_ok(sheaf_from_float_weighted(type, x, bytes + (size_t)r * row, N, importance));
    }
    return fnv(bytes, ROWS * row);
}

Test(encodings, bytes_are_those_of_the_other_quantizer, .timeout = 120) {
    float importance[N];
    for (int i = 0; i < N; i++) importance[i] = i < 40 ? 0 : (float)(mixed((uint64_t)i) & 0xffff) * 0x1p-12f;
    char *text = read_file(SHEAF_GOLDEN_DIR "/encodings.txt", NULL), *at = strchr(text, '\n');
    int n = 0;
    for (; at && at[1]; at = strchr(at + 1, '\n'), n++) {
        char name[16], how[16], hash[32];
        int kind;
        cr_assert(sscanf(at + 1, "%15s %15s %d %31s", name, how, &kind, hash) == 4, "encodings.txt: line %d", n + 2);
        sheaf_type type;
        cr_assert(sheaf_type_from_name(name, &type), "%s is no type", name);
        bool weighted = how[0] == 'w';
        uint64_t got = encoded_hash(type, kind, weighted ? importance : NULL), want = strtoull(hash, NULL, 16);
        cr_assert(got == want, "%s, %s, rows of kind %d: hash %016llx, expected %016llx", name, how, kind,
                  (unsigned long long)got, (unsigned long long)want);
    }
    free(text);
    expect_int(n, 15 * 2 * 8);
}

/* What matters comes out nearer when only that matters. */
Test(encodings, importance_is_heeded, .timeout = 60) {
    static const sheaf_type types[] = {SHEAF_Q4_0, SHEAF_Q4_1, SHEAF_Q5_0, SHEAF_Q5_1,   SHEAF_Q2_K,  SHEAF_Q3_K,
                                       SHEAF_Q4_K, SHEAF_Q5_K, SHEAF_Q6_K, SHEAF_IQ4_NL, SHEAF_IQ4_XS};
    rng r = rng_start("importance");
    float x[N], importance[N], back[N];
    uint8_t bytes[MOST_BYTES];
    for (int i = 0; i < N; i++) x[i] = rng_normal(&r);
    for (int i = 0; i < N; i++) importance[i] = i % 8 == 3 ? 1 : 1e-4f;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        double error[2] = {0, 0};
        for (int weighted = 0; weighted < 2; weighted++) {
            expect_ok(sheaf_from_float_weighted(types[k], x, bytes, N, weighted ? importance : NULL));
            expect_ok(sheaf_to_float(types[k], bytes, back, N));
            for (int i = 0; i < N; i++) error[weighted] += (double)importance[i] * (back[i] - x[i]) * (back[i] - x[i]);
        }
        cr_assert(error[1] < error[0], "%s: weighted error %g with importance, %g without", sheaf_type_name(types[k]),
                  error[1], error[0]);
    }
}

Test(encodings, importance_may_be_zero_or_huge, .timeout = 60) {
    float x[N], importance[N], back[N];
    uint8_t bytes[MOST_BYTES];
    for (int i = 0; i < N; i++) x[i] = element(0, 0, i);
    for (int shape = 0; shape < 3; shape++) {
        for (int i = 0; i < N; i++)
            importance[i] = shape == 0 ? 0 : shape == 1 ? 1e30f : (i % 100 == 0 ? 1e30f : 1e-30f);
        for (int t = 0; t < SHEAF_TYPE_COUNT; t++) {
            if (!sheaf_type_valid(t) || (t >= SHEAF_I8 && t <= SHEAF_F64)) continue;
            expect_ok(sheaf_from_float_weighted((sheaf_type)t, x, bytes, N, importance));
            expect_ok(sheaf_to_float((sheaf_type)t, bytes, back, N));
            for (int i = 0; i < N; i++)
                cr_assert(isfinite(back[i]), "%s: element %d is %g", sheaf_type_name((sheaf_type)t), i, back[i]);
        }
    }
}
