/* Element types: the table, plain conversions bit by bit, quantised ones against another program's
 * decoder and by error bounds. */
#include "tensor/tensor.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

Test(types, table_answers_for_every_id, .timeout = 10) {
    int n = 0;
    for (int id = -3; id < 200; id++) {
        bool known = false;
#define X(name, type_id, text, block, bytes)                                                                           \
    if (id == (type_id)) {                                                                                             \
        known = true;                                                                                                  \
        sheaf_type found;                                                                                              \
        expect_text(sheaf_type_name(SHEAF_##name), text);                                                              \
        cr_assert(sheaf_type_from_name(#name, &found) && (int)found == id, "%s is not found by name", #name);          \
        expect_int(sheaf_type_block(SHEAF_##name), block);                                                             \
        expect_int(sheaf_type_bytes(SHEAF_##name), bytes);                                                             \
        expect_int(sheaf_row_bytes(SHEAF_##name, 256 * 3), 256 * 3 / (block) * (bytes));                               \
    }
        SHEAF_TYPE_TABLE(X)
#undef X
        cr_assert(sheaf_type_valid(id) == known, "type %d: valid is %d, expected %d", id, !known, known);
        n += known;
    }
    expect_int(n, 21);
    sheaf_type t;
    cr_assert(!sheaf_type_from_name("q9_9", &t), "q9_9 is a type");
    expect_text(sheaf_type_name((sheaf_type)4), "?");
}

Test(types, rows_of_partial_blocks_and_wrapping_rows_have_no_size, .timeout = 10) {
    cr_assert(sheaf_row_bytes(SHEAF_Q4_0, 33) == SIZE_MAX, "33 elements of q4_0");
    cr_assert(sheaf_row_bytes(SHEAF_Q4_K, 32) == SIZE_MAX, "32 elements of q4_k");
    cr_assert(sheaf_row_bytes(SHEAF_F32, -1) == SIZE_MAX, "-1 elements");
    cr_assert(sheaf_row_bytes(SHEAF_F64, INT64_MAX) == SIZE_MAX, "a row that wraps");
    expect_int(sheaf_row_bytes(SHEAF_Q4_0, 0), 0);
}

/* Halves by their definition, in double: sign * 2^(e-15) * (1 + f/1024), or subnormal. */
static double half_value(uint16_t h) {
    int e = h >> 10 & 31, f = h & 1023;
    double v = e == 31 ? (f ? NAN : INFINITY) : e == 0 ? ldexp(f, -24) : ldexp(1024 + f, e - 25);
    return h >> 15 ? -v : v;
}

Test(types, every_half_decodes_exactly_and_comes_back, .timeout = 30) {
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float f = sheaf_f16_to_f32(h);
        double want = half_value(h);
        if (isnan(want)) {
            cr_assert(isnan(f), "half %04x: %g", h, f);
            cr_assert((sheaf_f32_to_f16(f) & 0x7c00) == 0x7c00 && (sheaf_f32_to_f16(f) & 0x3ff), "NaN %04x is lost", h);
        } else {
            cr_assert((double)f == want && !signbit(f) == !signbit(want), "half %04x: %g, expected %g", h, f, want);
            cr_assert(sheaf_f32_to_f16(f) == h, "half %04x comes back as %04x", h, sheaf_f32_to_f16(f));
        }
    }
}

/* Between two neighbouring halves: below the middle, the middle (to even), above it. */
Test(types, halves_round_to_nearest_even, .timeout = 30) {
    for (uint32_t i = 0; i < 0x7bff; i++) {
        float low = sheaf_f16_to_f32((uint16_t)i), high = sheaf_f16_to_f32((uint16_t)(i + 1));
        float middle = low + (high - low) / 2; /* exact in f32 */
        uint16_t even = (uint16_t)(i % 2 ? i + 1 : i);
        float below = nextafterf(middle, low), above = nextafterf(middle, high);
        cr_assert(sheaf_f32_to_f16(middle) == even, "the middle above %04x becomes %04x", i, sheaf_f32_to_f16(middle));
        cr_assert(sheaf_f32_to_f16(below) == i, "below the middle above %04x: %04x", i, sheaf_f32_to_f16(below));
        cr_assert(sheaf_f32_to_f16(above) == i + 1, "above the middle above %04x: %04x", i, sheaf_f32_to_f16(above));
        cr_assert(sheaf_f32_to_f16(-middle) == (even | 0x8000), "the middle below -%04x", i);
    }
    expect_int(sheaf_f32_to_f16(65519.996f), 0x7bff);
    expect_int(sheaf_f32_to_f16(65520.0f), 0x7c00);
    expect_int(sheaf_f32_to_f16(-INFINITY), 0xfc00);
    expect_int(sheaf_f32_to_f16(0x1p-26f), 0);
}

Test(types, every_brain_float_decodes_exactly_and_rounds_to_even, .timeout = 30) {
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float f = sheaf_bf16_to_f32(h);
        cr_assert(bits_of(f) == i << 16, "brain float %04x: bits %08x", h, bits_of(f));
        if (isnan(f)) {
            cr_assert(isnan(sheaf_bf16_to_f32(sheaf_f32_to_bf16(f))), "NaN %04x is lost", h);
            continue;
        }
        cr_assert(sheaf_f32_to_bf16(f) == h, "brain float %04x comes back as %04x", h, sheaf_f32_to_bf16(f));
        if (isinf(f)) continue;
        uint16_t even = (uint16_t)(i % 2 ? i + 1 : i);
        cr_assert(sheaf_f32_to_bf16(float_of(i << 16 | 0x8000)) == even, "the middle above %04x", i);
        cr_assert(sheaf_f32_to_bf16(float_of(i << 16 | 0x7fff)) == h, "below the middle above %04x", i);
        cr_assert(sheaf_f32_to_bf16(float_of(i << 16 | 0x8001)) == h + 1, "above the middle above %04x", i);
    }
    cr_assert(isnan(sheaf_bf16_to_f32(sheaf_f32_to_bf16(float_of(0x7f800001)))), "a low NaN became infinite");
}

Test(types, integers_round_and_clamp, .timeout = 10) {
    const float in[] = {0, 1.5f, -2.5f, 127.6f, -200, 1e30f, -1e30f, NAN};
    int8_t i8[8];
    int32_t i32[8];
    int64_t i64[8];
    expect_ok(sheaf_from_float(SHEAF_I8, in, i8, 8));
    expect_ok(sheaf_from_float(SHEAF_I32, in, i32, 8));
    expect_ok(sheaf_from_float(SHEAF_I64, in, i64, 8));
    static const int64_t want8[] = {0, 2, -2, 127, -128, 127, -128, 0};
    static const int64_t want32[] = {0, 2, -2, 128, -200, INT32_MAX, INT32_MIN, 0};
    static const int64_t want64[] = {0, 2, -2, 128, -200, INT64_MAX, INT64_MIN, 0};
    for (int i = 0; i < 8; i++) {
        expect_int(i8[i], want8[i]);
        expect_int(i32[i], want32[i]);
        expect_int(i64[i], want64[i]);
    }
}

/* --- quantised types --- */

static int hex_digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

/* Bytes of a line of hexadecimal digits; its length in *n. Free by free(). */
static uint8_t *from_hex(const char *digits, size_t *n) {
    size_t count = strcspn(digits, "\n") / 2;
    uint8_t *bytes = malloc(count);
    cr_assert(bytes != NULL, "out of memory");
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(hex_digit(digits[2 * i]) << 4 | hex_digit(digits[2 * i + 1]));
    }
    *n = count;
    return bytes;
}

static void check_golden_type(const char *name, const char *blocks, const char *floats) {
    sheaf_type type;
    char short_name[16] = "";
    memcpy(short_name, name, strcspn(name, "\n"));
    cr_assert(sheaf_type_from_name(short_name, &type), "%s is no type", short_name);
    size_t n_bytes, n_digits;
    uint8_t *bytes = from_hex(blocks, &n_bytes), *want = from_hex(floats, &n_digits);
    int64_t n = (int64_t)(n_bytes / sheaf_type_bytes(type)) * sheaf_type_block(type);
    expect_int(n_digits / 4, n);
    float *got = malloc((size_t)n * sizeof *got);
    expect_ok(sheaf_to_float(type, bytes, got, n));
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)want[4 * i] << 24 | (uint32_t)want[4 * i + 1] << 16 | (uint32_t)want[4 * i + 2] << 8 |
                        want[4 * i + 3];
        cr_assert(bits_of(got[i]) == bits || got[i] == float_of(bits), "%s element %lld: %a, expected %a", short_name,
                  (long long)i, got[i], float_of(bits));
    }
    free(got), free(want), free(bytes);
}

Test(quants, decoders_agree_with_the_gguf_package_bit_for_bit, .timeout = 30) {
    char *text = read_file(SHEAF_GOLDEN_DIR "/quants.txt", NULL);
    int n_types = 0;
    for (char *at = strstr(text, "\ntype "); at; at = strstr(at + 1, "\ntype ")) {
        char *bytes = strstr(at, "\nbytes "), *floats = strstr(at, "\nfloats ");
        cr_assert(bytes && floats, "quants.txt is cut");
        check_golden_type(at + 6, bytes + 7, floats + 8);
        n_types++;
    }
    free(text);
    expect_int(n_types, 13);
}

/* Largest root mean square error, relative to that of the data, on normal numbers; and how exact a
 * block of one repeated value is. */
static const struct {
    sheaf_type type;
    double rms;
} encoders[] = {
    {SHEAF_F32, 0},       {SHEAF_F64, 0},      {SHEAF_F16, 3e-4},   {SHEAF_BF16, 2.5e-3}, {SHEAF_Q8_0, 6e-3},
    {SHEAF_Q5_0, 0.047},  {SHEAF_Q5_1, 0.040}, {SHEAF_Q4_0, 0.095}, {SHEAF_Q4_1, 0.083},  {SHEAF_IQ4_NL, 0.078},
    {SHEAF_Q6_K, 0.019},  {SHEAF_Q5_K, 0.036}, {SHEAF_Q4_K, 0.074}, {SHEAF_Q3_K, 0.155},  {SHEAF_Q2_K, 0.30},
    {SHEAF_IQ4_XS, 0.08}, {SHEAF_MXFP4, 0.13},
};

static double relative_error(sheaf_type type, const float *x, int64_t n) {
    uint8_t *bytes = malloc(sheaf_row_bytes(type, n));
    float *back = malloc((size_t)n * sizeof *back);
    expect_ok(sheaf_from_float(type, x, bytes, n));
    expect_ok(sheaf_to_float(type, bytes, back, n));
    double error = 0, power = 0;
    for (int64_t i = 0; i < n; i++) {
        cr_assert(isfinite(back[i]), "%s: element %lld (%g) comes back as %g", sheaf_type_name(type), (long long)i,
                  x[i], back[i]);
        error += ((double)back[i] - x[i]) * ((double)back[i] - x[i]);
        power += (double)x[i] * x[i];
    }
    free(back), free(bytes);
    return power > 0 ? sqrt(error / power) : sqrt(error);
}

Test(quants, round_trips_stay_within_bounds, .timeout = 60) {
    enum { N = 256 * 64 };
    rng r = rng_start("round trips");
    float *x = malloc(N * sizeof *x);
    for (int i = 0; i < N; i++) x[i] = rng_normal(&r) * 0.02f;
    for (size_t k = 0; k < sizeof encoders / sizeof *encoders; k++) {
        double error = relative_error(encoders[k].type, x, N);
        fprintf(stderr, "%-7s rms error %.5f\n", sheaf_type_name(encoders[k].type), error);
        cr_assert(error <= encoders[k].rms, "%s: relative error %g, expected at most %g",
                  sheaf_type_name(encoders[k].type), error, encoders[k].rms);
    }
    free(x);
}

/* Rows that break careless encoders: zeros, one spike, constants, tiny and huge values, outliers. */
Test(quants, odd_rows_encode_to_finite_numbers, .timeout = 60) {
    float x[256];
    for (size_t k = 0; k < sizeof encoders / sizeof *encoders; k++) {
        sheaf_type type = encoders[k].type;
        for (int shape = 0; shape < 7; shape++) {
            for (int i = 0; i < 256; i++) {
                const float values[] = {0,
                                        i == 77 ? -3.0f : 0.0f,
                                        0.25f,
                                        -0.25f,
                                        1e-30f * (float)(i - 128),
                                        50.0f * (float)(i - 128),
                                        i % 64 == 0 ? 900.0f : 0.01f * (float)(i % 7)};
                x[i] = values[shape];
            }
            double error = relative_error(type, x, 256);
            double bound = shape == 0 ? 0 : shape == 2 || shape == 3 ? 0.02 : 1.01;
            cr_assert(error <= bound, "%s, row shape %d: relative error %g, expected at most %g", sheaf_type_name(type),
                      shape, error, bound);
        }
    }
}

Test(quants, encoders_accept_what_is_no_number, .timeout = 30) {
    float x[256];
    uint8_t bytes[256 * 8];
    for (int i = 0; i < 256; i++) x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -1.0f;
    for (size_t k = 0; k < sizeof encoders / sizeof *encoders; k++) {
        expect_ok(sheaf_from_float(encoders[k].type, x, bytes, 256)); /* the sanitizer watches conversions */
    }
}

Test(quants, encoding_is_stable, .timeout = 30) {
    /* A decoded row encodes to values that decode the same for types whose codes are exact. */
    static const sheaf_type exact[] = {SHEAF_Q4_0, SHEAF_Q5_0, SHEAF_Q8_0};
    rng r = rng_start("stable");
    float x[256], y[256], z[256];
    uint8_t bytes[512];
    for (int i = 0; i < 256; i++) x[i] = rng_normal(&r);
    for (size_t k = 0; k < sizeof exact / sizeof *exact; k++) {
        expect_ok(sheaf_from_float(exact[k], x, bytes, 256));
        expect_ok(sheaf_to_float(exact[k], bytes, y, 256));
        expect_ok(sheaf_from_float(exact[k], y, bytes, 256));
        expect_ok(sheaf_to_float(exact[k], bytes, z, 256));
        for (int i = 0; i < 256; i++) {
            cr_assert(fabsf(z[i] - y[i]) <= 1e-3f * fabsf(y[i]) + 1e-6f, "%s element %d: %g, expected %g",
                      sheaf_type_name(exact[k]), i, z[i], y[i]);
        }
    }
}

Test(quants, what_cannot_be_converted_is_said, .timeout = 10) {
    float x[256] = {0};
    uint8_t bytes[256];
    expect_status(sheaf_from_float((sheaf_type)5, x, bytes, 32), SHEAF_E_UNSUPPORTED);
    expect_status(sheaf_from_float(SHEAF_Q4_0, x, bytes, 31), SHEAF_E_SHAPE);
    expect_error("31 elements are not whole blocks of 32");
    expect_status(sheaf_to_float((sheaf_type)5, bytes, x, 32), SHEAF_E_UNSUPPORTED);
    expect_error("type 5 is unknown");
}
