/* Reading honest GGUF files: values of every type, conversions, tensors, bytes, maps, speed. */
#include "tensor/gguf.h"
#include "tests/support/expect.h"
#include "tests/support/gguf_build.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static sheaf_gguf *open_built(gguf_build *b) {
    size_t n;
    const uint8_t *p = gguf_build_bytes(b, &n);
    sheaf_gguf *g = NULL;
    expect_ok(sheaf_gguf_open_memory(p, n, &g));
    return g;
}

static bool is_text(sheaf_str s, const char *wanted) { return s.n == strlen(wanted) && memcmp(s.s, wanted, s.n) == 0; }

static gguf_build *with_every_type(void) {
    gguf_build *b = gguf_build_new();
    gguf_build_u8(b, "u8", 200);
    gguf_build_i8(b, "i8", -100);
    gguf_build_u16(b, "u16", 60000);
    gguf_build_i16(b, "i16", -30000);
    gguf_build_u32(b, "u32", 4000000000u);
    gguf_build_i32(b, "i32", -2000000000);
    gguf_build_u64(b, "u64", UINT64_MAX);
    gguf_build_i64(b, "i64", INT64_MIN);
    gguf_build_f32(b, "f32", 0.25f);
    gguf_build_f64(b, "f64", 1e300);
    gguf_build_bool(b, "bool", true);
    gguf_build_str(b, "str", "hello");
    gguf_build_str_n(b, "nul", "a\0b", 3);
    gguf_build_strs(b, "strs", (const char *const[]){"one", "", "three"}, 3);
    gguf_build_array(b, "i32s", SHEAF_GGUF_I32, (int32_t[]){1, -2, 3}, 3);
    gguf_build_array(b, "f32s", SHEAF_GGUF_F32, (float[]){0.5f, -1.5f}, 2);
    gguf_build_array(b, "none", SHEAF_GGUF_U8, NULL, 0);
    return b;
}

Test(gguf, values_of_every_type_come_back, .timeout = 120) {
    gguf_build *b = with_every_type();
    sheaf_gguf *g = open_built(b);
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"u8", 200},         {"i8", -100},         {"u16", 60000},    {"i16", -30000},
                {"u32", 4000000000}, {"i32", -2000000000}, {"i64", INT64_MIN}};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        int64_t v = 0;
        expect_ok(sheaf_gguf_get_i64(g, ints[i].key, &v));
        expect_int(v, ints[i].value);
    }
    float f = 0;
    bool yes = false;
    sheaf_str s;
    expect_ok(sheaf_gguf_get_f32(g, "f32", &f));
    cr_assert(f == 0.25f, "f32 is %g, expected 0.25", (double)f);
    expect_ok(sheaf_gguf_get_f32(g, "i8", &f));
    cr_assert(f == -100.0f, "i8 as a float is %g, expected -100", (double)f);
    expect_ok(sheaf_gguf_get_bool(g, "bool", &yes));
    expect_int(yes, true);
    expect_ok(sheaf_gguf_get_str(g, "str", &s));
    cr_assert(is_text(s, "hello"), "str has %zu bytes", s.n);
    expect_ok(sheaf_gguf_get_str(g, "nul", &s));
    expect_int(s.n, 3);
    expect_int(sheaf_gguf_version(g), 3);
    expect_int(sheaf_gguf_alignment(g), 32);
    expect_int(sheaf_gguf_n_keys(g), 17);
    expect_int(sheaf_gguf_n_tensors(g), 0);
    sheaf_gguf_close(g);
    gguf_build_free(b);
}

Test(gguf, values_that_do_not_fit_are_refused_and_out_stays, .timeout = 120) {
    gguf_build *b = with_every_type();
    sheaf_gguf *g = open_built(b);
    uint32_t u = 7;
    int64_t i = 7;
    float f = 7;
    bool yes = true;
    sheaf_str s = {"x", 1};
    expect_status(sheaf_gguf_get_u32(g, "absent", &u), SHEAF_E_NOT_FOUND);
    expect_error("key absent not found");
    expect_status(sheaf_gguf_get_u32(g, "i8", &u), SHEAF_E_FORMAT);
    expect_error("key i8: -100 is out of range");
    expect_status(sheaf_gguf_get_u32(g, "f32", &u), SHEAF_E_FORMAT);
    expect_error("key f32: expected an integer, found f32");
    expect_status(sheaf_gguf_get_u32(g, "u64", &u), SHEAF_E_FORMAT);
    expect_status(sheaf_gguf_get_i64(g, "u64", &i), SHEAF_E_FORMAT);
    expect_status(sheaf_gguf_get_i64(g, "bool", &i), SHEAF_E_FORMAT);
    expect_status(sheaf_gguf_get_f32(g, "f64", &f), SHEAF_E_FORMAT);
    expect_error("out of range of a float");
    expect_status(sheaf_gguf_get_f32(g, "str", &f), SHEAF_E_FORMAT);
    expect_status(sheaf_gguf_get_bool(g, "u8", &yes), SHEAF_E_FORMAT);
    expect_status(sheaf_gguf_get_str(g, "strs", &s), SHEAF_E_FORMAT);
    expect_error("key strs: expected a string, found array");
    expect_int(u, 7);
    expect_int(i, 7);
    expect_int(f, 7);
    expect_int(yes, true);
    expect_int(s.n, 1);
    sheaf_gguf_close(g);
    gguf_build_free(b);
}

Test(gguf, arrays_are_reached_by_key_and_by_number, .timeout = 120) {
    gguf_build *b = with_every_type();
    sheaf_gguf *g = open_built(b);
    sheaf_gguf_type type;
    int64_t n, v;
    float f;
    sheaf_str s;
    sheaf_gguf_value value;
    expect_ok(sheaf_gguf_array(g, "strs", &type, &n));
    expect_int(type, SHEAF_GGUF_STRING);
    expect_int(n, 3);
    expect_ok(sheaf_gguf_array_str(g, "strs", 2, &s));
    cr_assert(is_text(s, "three"), "strs[2] has %zu bytes", s.n);
    expect_status(sheaf_gguf_array_str(g, "strs", 3, &s), SHEAF_E_RANGE);
    expect_status(sheaf_gguf_array_str(g, "strs", -1, &s), SHEAF_E_RANGE);
    expect_status(sheaf_gguf_array_str(g, "i32s", 0, &s), SHEAF_E_FORMAT);
    expect_ok(sheaf_gguf_array_i64(g, "i32s", 1, &v));
    expect_int(v, -2);
    expect_ok(sheaf_gguf_array_f32(g, "f32s", 1, &f));
    expect_int(f * 10, -15);
    expect_status(sheaf_gguf_array(g, "str", &type, &n), SHEAF_E_FORMAT);
    int64_t at = sheaf_gguf_find(g, "strs");
    expect_int(sheaf_gguf_array_length(g, at), 3);
    expect_ok(sheaf_gguf_element(g, at, 0, &type, &value));
    cr_assert(is_text(value.str, "one"), "element 0 has %zu bytes", value.str.n);
    expect_int(sheaf_gguf_array_length(g, sheaf_gguf_find(g, "none")), 0);
    expect_int(sheaf_gguf_array_length(g, sheaf_gguf_find(g, "str")), -1);
    expect_status(sheaf_gguf_scalar(g, at, &type, &value), SHEAF_E_FORMAT);
    expect_status(sheaf_gguf_scalar(g, 99, &type, &value), SHEAF_E_RANGE);
    sheaf_gguf_close(g);
    gguf_build_free(b);
}

Test(gguf, nested_arrays_are_passed_over, .timeout = 120) {
    gguf_build *b = gguf_build_new();
    /* [[1, 2], ["x"]] */
    uint8_t value[12 + 12 + 2 + 12 + 9] = {SHEAF_GGUF_ARRAY, 0, 0, 0, 2};
    value[12] = SHEAF_GGUF_U8;
    value[16] = 2;
    value[26] = SHEAF_GGUF_STRING;
    value[30] = 1;
    value[38] = 1;
    value[46] = 'x';
    gguf_build_raw_key(b, "nested", 6, SHEAF_GGUF_ARRAY, value, sizeof value);
    gguf_build_u32(b, "after", 5);
    sheaf_gguf *g = open_built(b);
    uint32_t v = 0;
    sheaf_gguf_type type;
    sheaf_gguf_value out;
    expect_ok(sheaf_gguf_get_u32(g, "after", &v));
    expect_int(v, 5);
    expect_status(sheaf_gguf_element(g, 0, 0, &type, &out), SHEAF_E_UNSUPPORTED);
    sheaf_gguf_close(g);
    gguf_build_free(b);
}

/* Two tensors, the second after padding; its values tell where it is. */
static gguf_build *with_tensors(uint32_t version, uint32_t alignment) {
    gguf_build *b = gguf_build_new();
    float a[3] = {1, 2, 3}, w[64];
    for (int i = 0; i < 64; i++) w[i] = (float)i - 32;
    gguf_build_version(b, version);
    gguf_build_alignment(b, alignment, alignment != 32);
    gguf_build_tensor_f32(b, "a", SHEAF_F32, 1, (int64_t[]){3}, a);
    gguf_build_tensor_f32(b, "blk.0.w", SHEAF_Q8_0, 2, (int64_t[]){32, 2}, w);
    return b;
}

static void check_tensors(sheaf_gguf *g) {
    expect_int(sheaf_gguf_n_tensors(g), 2);
    const sheaf_gguf_tensor *t = sheaf_gguf_find_tensor(g, "blk.0.w");
    cr_assert_not_null(t, "blk.0.w not found");
    expect_int(t->type, SHEAF_Q8_0);
    expect_int(t->n_dims, 2);
    expect_int(t->ne[0] * 1000 + t->ne[1] * 100 + t->ne[2] * 10 + t->ne[3], 32000 + 200 + 10 + 1);
    expect_int(t->bytes, 68);
    expect_int(t->offset % sheaf_gguf_alignment(g), 0);
    cr_assert_null(sheaf_gguf_find_tensor(g, "blk.0"), "a prefix is no name");
    uint8_t read[68];
    float back[64];
    expect_ok(sheaf_gguf_read(g, t, 0, read, sizeof read));
    expect_ok(sheaf_to_float(SHEAF_Q8_0, read, back, 64));
    cr_assert(fabsf(back[63] - 31) < 0.2f, "the last value is %g, expected about 31", (double)back[63]);
    expect_status(sheaf_gguf_read(g, t, 60, read, 9), SHEAF_E_RANGE);
    expect_status(sheaf_gguf_read(g, t, UINT64_MAX, read, 9), SHEAF_E_RANGE);
    cr_assert_null(sheaf_gguf_mapped(g, t), "not mapped yet");
    expect_ok(sheaf_gguf_map(g));
    expect_ok(sheaf_gguf_map(g));
    expect_int(memcmp(sheaf_gguf_mapped(g, t), read, sizeof read), 0);
}

Test(gguf, tensors_are_read_and_mapped, .timeout = 120) {
    static const uint32_t alignments[] = {32, 8, 64, 4096};
    for (size_t i = 0; i < 4; i++)
        for (uint32_t version = 2; version <= 3; version++) {
            gguf_build *b = with_tensors(version, alignments[i]);
            sheaf_gguf *g = open_built(b);
            check_tensors(g);
            expect_int(sheaf_gguf_version(g), version);
            expect_int(sheaf_gguf_alignment(g), alignments[i]);
            sheaf_gguf_close(g);
            gguf_build_free(b);
        }
}

Test(gguf, a_file_gives_what_its_bytes_give, .timeout = 120) {
    char path[] = P_tmpdir "/sheaf-gguf-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    gguf_build *b = with_tensors(3, 32);
    gguf_build_file(b, path);
    sheaf_gguf *g = NULL;
    expect_ok(sheaf_gguf_open(path, &g));
    check_tensors(g);
    expect_text(sheaf_gguf_path(g, 0), path);
    expect_int(sheaf_gguf_shards(g), 1);
    const void *base;
    size_t size;
    sheaf_gguf_mapping(g, 0, &base, &size);
    expect_int(size, sheaf_gguf_file_bytes(g, 0));
    sheaf_gguf_close(g);
    gguf_build_free(b);
    close(fd);
    unlink(path);
}

Test(gguf, text_of_strings_is_safe_to_print, .timeout = 120) {
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } cases[] = {
        {"plain", 5, "plain"},
        {"a\0b", 3, "a\\x00b"},
        {"\n\t\\", 3, "\\n\\t\\\\"},
        {"h\xc3\xa9", 3, "h\xc3\xa9"},
        {"\xc3", 1, "\\xc3"},
        {"\xc0\x80", 2, "\\xc0\\x80"},
        {"\xed\xa0\x80", 3, "\\xed\\xa0\\x80"},
        {"\x1b[2J", 4, "\\x1b[2J"},
        {"\xc2\x9b", 2, "\\xc2\\x9b"},
        {"\xf0\x9f\x8c\xbe", 4, "\xf0\x9f\x8c\xbe"},
        {"\xf5\x80\x80\x80", 4, "\\xf5\\x80\\x80\\x80"},
        {"", 0, ""},
        {"0123456789abcdefghij", 20, "0123456789abcdefghij"},
        {"0123456789abcdefghijk", 21, "0123456789abcdefg..."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char buf[21];
        expect_text(sheaf_str_text((sheaf_str){cases[i].in, cases[i].n}, buf, sizeof buf), cases[i].out);
    }
    char tiny[3];
    expect_text(sheaf_str_text((sheaf_str){"long", 4}, tiny, sizeof tiny), "..");
}

/* Case G09: the hardened reader stays fast on the largest vocabularies. */
Test(gguf, a_header_of_half_a_million_strings_opens_quickly, .timeout = 300) {
    enum { TOKENS = 256 << 10, MERGES = 250000 };
    char(*text)[16] = malloc(sizeof *text * TOKENS);
    const char **strs = malloc(sizeof *strs * TOKENS);
    float *scores = calloc(TOKENS, sizeof *scores);
    cr_assert(text && strs && scores);
    for (int i = 0; i < TOKENS; i++) {
        snprintf(text[i], sizeof text[i], "token %d", i);
        strs[i] = text[i];
    }
    gguf_build *b = gguf_build_new();
    gguf_build_strs(b, "tokenizer.ggml.tokens", strs, TOKENS);
    gguf_build_array(b, "tokenizer.ggml.scores", SHEAF_GGUF_F32, scores, TOKENS);
    gguf_build_strs(b, "tokenizer.ggml.merges", strs, MERGES);
    for (int i = 0; i < 5000; i++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%d.weight", i);
        gguf_build_tensor(b, name, SHEAF_F32, 1, (int64_t[]){1}, NULL);
    }
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    sheaf_gguf *g = open_built(b);
    int64_t i = sheaf_gguf_find(g, "tokenizer.ggml.tokens");
    sheaf_gguf_type type;
    sheaf_gguf_value v;
    for (int64_t j = 0; j < TOKENS; j++) expect_ok(sheaf_gguf_element(g, i, j, &type, &v));
    clock_gettime(CLOCK_MONOTONIC, &t1);
    double seconds = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9;
    cr_assert(is_text(v.str, text[TOKENS - 1]), "the last token has %zu bytes", v.str.n);
    cr_assert(seconds < 0.5, "opening and walking took %.3f s, expected less than 0.5", seconds);
    sheaf_gguf_close(g);
    gguf_build_free(b);
    free(text);
    free(strs);
    free(scores);
}
