/* GGUF files that lie, end early, or are something else (cases G01, G03, G04, G06, G07), and a
 * machine that runs out of memory: always one status with text, never a crash, never much memory. */
#include "tensor/gguf.h"
#include "tests/support/expect.h"
#include "tests/support/gguf_build.h"

#include <stdlib.h>
#include <unistd.h>

/* What the library asked for at once and in sum, while the hook is in place. */
typedef struct watch {
    size_t largest, total;
    int64_t calls, fail_at; /* fail_at < 0: never */
} watch;

static bool on_alloc(void *ctx, size_t size) {
    watch *w = ctx;
    if (size > w->largest) w->largest = size;
    w->total += size;
    return w->calls++ != w->fail_at;
}

/* Opens what b makes; returns the status and closes. */
static sheaf_status try_bytes(const uint8_t *p, size_t n) {
    /* A copy of exactly n bytes, so that the address sanitizer sees a read beyond them. */
    uint8_t *copy = malloc(n ? n : 1);
    cr_assert_not_null(copy);
    if (n) memcpy(copy, p, n);
    sheaf_gguf *g = NULL;
    sheaf_status s = sheaf_gguf_open_memory(copy, n, &g);
    cr_assert((s == SHEAF_OK) == (g != NULL), "status %s with gguf %p", sheaf_status_name(s), (void *)g);
    sheaf_gguf_close(g);
    free(copy);
    return s;
}

static sheaf_status try_built(gguf_build *b) {
    size_t n;
    const uint8_t *p = gguf_build_bytes(b, &n);
    sheaf_status s = try_bytes(p, n);
    gguf_build_free(b);
    return s;
}

static gguf_build *small(void) {
    gguf_build *b = gguf_build_new();
    gguf_build_str(b, "general.architecture", "llama");
    gguf_build_u32(b, "llama.block_count", 2);
    gguf_build_strs(b, "tokens", (const char *const[]){"a", "bc", "\xff"}, 3);
    gguf_build_array(b, "scores", SHEAF_GGUF_F32, (float[]){1, 2, 3}, 3);
    gguf_build_tensor(b, "token_embd.weight", SHEAF_F32, 2, (int64_t[]){4, 3}, NULL);
    gguf_build_tensor(b, "output.weight", SHEAF_Q4_0, 2, (int64_t[]){32, 3}, NULL);
    return b;
}

Test(gguf_hostile, shapes_that_wrap_or_make_no_sense_are_refused, .timeout = 120) {
    const uint64_t big = (uint64_t)1 << 33;
    const struct {
        uint32_t n_dims, type;
        uint64_t ne[5];
        const char *says;
    } cases[] = {
        {2, SHEAF_F32, {big, ((uint64_t)1 << 31) + 1}, "wraps"},
        {2, SHEAF_F32, {(uint64_t)1 << 62, 4}, "wraps"},
        {2, SHEAF_F16, {INT64_MAX, 1}, "wraps"},
        {2, SHEAF_F32, {UINT64_MAX, 1}, "dimension 0 is -1"},
        {2, SHEAF_F32, {0, 1}, "dimension 0 is 0"},
        {4, SHEAF_F32, {(uint64_t)1 << 31, (uint64_t)1 << 31, 2, 2}, "wraps"},
        {0, SHEAF_F32, {0}, "it has 0 dimensions"},
        {5, SHEAF_F32, {1, 1, 1, 1, 1}, "it has 5 dimensions"},
        {2, SHEAF_Q4_0, {33, 1}, "no whole number of q4_0 blocks"},
        {2, SHEAF_F32, {1024, 1024}, "missing"},
        {1, SHEAF_F32, {INT64_MAX / 4}, "missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_build *b = gguf_build_new();
        gguf_build_raw_tensor(b, "liar", 4, cases[i].n_dims, cases[i].ne, cases[i].type, 0);
        gguf_build_trailing(b, NULL, 4096);
        watch w = {.fail_at = -1};
        sheaf_alloc_hook(on_alloc, &w);
        expect_status(try_built(b), SHEAF_E_FORMAT);
        sheaf_alloc_hook(NULL, NULL);
        expect_error("tensor liar: ");
        expect_error(cases[i].says);
        cr_assert(w.largest <= 8192, "case %zu: %zu bytes at once", i, w.largest);
    }
}

Test(gguf_hostile, a_number_of_dimensions_of_all_ones_is_refused, .timeout = 120) {
    gguf_build *b = gguf_build_new();
    gguf_build_raw_tensor(b, "liar", 4, UINT32_MAX, NULL, 0, 0);
    gguf_build_trailing(b, NULL, 4096);
    expect_status(try_built(b), SHEAF_E_FORMAT);
    expect_error("4294967295 dimensions");
}

Test(gguf_hostile, offsets_are_checked, .timeout = 120) {
    static const struct {
        uint64_t offset;
        const char *says;
    } cases[] = {
        {UINT64_MAX - 10, "no multiple"},        {UINT64_MAX - 31, "wraps"},     {4096, "missing"},
        {16, "no multiple of the alignment 32"}, {(uint64_t)1 << 63, "missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_build *b = gguf_build_new();
        gguf_build_raw_tensor(b, "liar", 4, 1, (uint64_t[]){8}, SHEAF_F32, cases[i].offset);
        gguf_build_trailing(b, NULL, 4096);
        expect_status(try_built(b), SHEAF_E_FORMAT);
        expect_error("tensor liar: ");
        expect_error(cases[i].says);
    }
}

Test(gguf_hostile, unknown_types_are_named, .timeout = 120) {
    static const uint32_t types[] = {4, 5, 9, 31, 36, 40, 63, 64, 200, UINT32_MAX};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        gguf_build *b = gguf_build_new();
        gguf_build_raw_tensor(b, "blk.0.x", 7, 1, (uint64_t[]){32}, types[i], 0);
        gguf_build_trailing(b, NULL, 4096);
        expect_status(try_built(b), SHEAF_E_UNSUPPORTED);
        char says[64];
        snprintf(says, sizeof says, "type %d of tensor blk.0.x not supported", (int)types[i]);
        expect_error(says);
    }
}

/* Case G04: counts far beyond the file cost neither time nor memory. */
Test(gguf_hostile, counts_beyond_the_file_are_refused_cheaply, .timeout = 120) {
    static const uint64_t counts[] = {1 << 20, (uint64_t)1 << 40, (uint64_t)1 << 61, UINT64_MAX};
    for (size_t i = 0; i < 4; i++)
        for (int which = 0; which < 2; which++) {
            gguf_build *b = gguf_build_new();
            gguf_build_trailing(b, NULL, 4096 - 24);
            size_t n;
            uint8_t *p = (uint8_t *)(uintptr_t)gguf_build_bytes(b, &n);
            memcpy(p + (which ? 16 : 8), &counts[i], 8);
            watch w = {.fail_at = -1};
            sheaf_alloc_hook(on_alloc, &w);
            expect_status(try_bytes(p, n), SHEAF_E_FORMAT);
            sheaf_alloc_hook(NULL, NULL);
            expect_error("cannot hold them");
            cr_assert(w.total < 1 << 20, "%zu bytes were asked for", w.total);
            gguf_build_free(b);
        }
}

Test(gguf_hostile, lengths_and_element_counts_beyond_the_file_are_refused, .timeout = 120) {
    /* times 4, 8 or 12 bytes some of these wrap to nothing */
    static const uint64_t counts[] = {
        1000, (uint64_t)1 << 31, (uint64_t)1 << 60, (uint64_t)1 << 61, (uint64_t)1 << 62, UINT64_MAX, UINT64_MAX - 7};
    char says[32];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (uint32_t type = 0; type <= SHEAF_GGUF_F64; type++) {
            gguf_build *b = gguf_build_new();
            uint8_t value[12];
            memcpy(value, &type, 4);
            memcpy(value + 4, &counts[i], 8);
            gguf_build_raw_key(b, "list", 4, SHEAF_GGUF_ARRAY, value, sizeof value);
            gguf_build_raw_key(b, "filler", 6, SHEAF_GGUF_U64, "12345678", 8);
            expect_status(try_built(b), SHEAF_E_FORMAT);
            snprintf(says, sizeof says, "key list: %llu ", (unsigned long long)counts[i]);
            expect_error(says);
        }
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        gguf_build *b = gguf_build_new();
        gguf_build_raw_key(b, "text", 4, SHEAF_GGUF_STRING, &counts[i], 8);
        expect_status(try_built(b), SHEAF_E_FORMAT);
        expect_error("key text: ");
    }
}

Test(gguf_hostile, unknown_value_types_and_deep_nesting_are_refused, .timeout = 120) {
    gguf_build *b = gguf_build_new();
    gguf_build_raw_key(b, "odd", 3, 13, "1234", 4);
    expect_status(try_built(b), SHEAF_E_FORMAT);
    expect_error("key odd: value type 13 is unknown");
    uint8_t deep[12 * 1000] = {0};
    for (int i = 0; i < 1000; i++) {
        deep[12 * i] = SHEAF_GGUF_ARRAY;
        deep[12 * i + 4] = 1;
    }
    b = gguf_build_new();
    gguf_build_raw_key(b, "deep", 4, SHEAF_GGUF_ARRAY, deep, sizeof deep);
    expect_status(try_built(b), SHEAF_E_UNSUPPORTED);
    expect_error("key deep: arrays nested more than");
}

Test(gguf_hostile, alignment_must_be_a_power_of_two, .timeout = 120) {
    static const uint32_t bad[] = {0, 3, 24, 33, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gguf_build *b = gguf_build_new();
        gguf_build_u32(b, "general.alignment", bad[i]);
        expect_status(try_built(b), SHEAF_E_FORMAT);
        expect_error("general.alignment");
    }
    gguf_build *b = gguf_build_new();
    gguf_build_str(b, "general.alignment", "32");
    expect_status(try_built(b), SHEAF_E_FORMAT);
    /* A power of two that puts all data beyond the file. */
    b = small();
    gguf_build_u32(b, "general.alignment", 1u << 31);
    expect_status(try_built(b), SHEAF_E_FORMAT);
    expect_error("missing");
}

Test(gguf_hostile, names_must_be_unique_and_short, .timeout = 120) {
    gguf_build *b = small();
    gguf_build_u32(b, "llama.block_count", 3);
    expect_status(try_built(b), SHEAF_E_FORMAT);
    expect_error("key llama.block_count occurs twice (numbers 1 and 4)");
    b = small();
    gguf_build_tensor(b, "output.weight", SHEAF_F32, 1, (int64_t[]){1}, NULL);
    expect_status(try_built(b), SHEAF_E_FORMAT);
    expect_error("tensor output.weight occurs twice");
    char name[65];
    memset(name, 'n', sizeof name);
    b = gguf_build_new();
    gguf_build_raw_tensor(b, name, 64, 1, (uint64_t[]){8}, SHEAF_F32, 0);
    gguf_build_trailing(b, NULL, 64);
    expect_status(try_built(b), SHEAF_E_UNSUPPORTED);
    expect_error("name has 64 bytes");
}

Test(gguf_hostile, odd_names_are_printed_escaped, .timeout = 120) {
    gguf_build *b = gguf_build_new();
    gguf_build_raw_key(b, "a\0\xff\x1b[2J", 7, 77, NULL, 0);
    gguf_build_trailing(b, NULL, 64);
    expect_status(try_built(b), SHEAF_E_FORMAT);
    expect_error("key a\\x00\\xff\\x1b[2J: value type 77");
}

Test(gguf_hostile, foreign_files_are_told_apart, .timeout = 120) {
    static const struct {
        const char *bytes;
        size_t n;
        sheaf_status status;
        const char *says;
    } cases[] = {
        {"", 0, SHEAF_E_FORMAT, "it has 0 bytes"},
        {"GG", 2, SHEAF_E_FORMAT, "it has 2 bytes"},
        {"GGUF", 4, SHEAF_E_FORMAT, "truncated"},
        {"GGUF\0\0\0\3........................", 32, SHEAF_E_UNSUPPORTED, "big-endian file"},
        {"GGUF\1\0\0\0........................", 32, SHEAF_E_UNSUPPORTED, "GGUF version 1 not supported"},
        {"GGUF\4\0\0\0........................", 32, SHEAF_E_UNSUPPORTED, "GGUF version 4 not supported"},
        {"GGUF\0\0\0\0........................", 32, SHEAF_E_UNSUPPORTED, "GGUF version 0 not supported"},
        {"FUGG\0\0\0\3........................", 32, SHEAF_E_FORMAT, "big-endian file"},
        {"tjgg\1\0\0\0........................", 32, SHEAF_E_FORMAT, "older than GGUF"},
        {"version https://git-lfs.github.com/", 35, SHEAF_E_FORMAT, "Git LFS"},
        {"PK\3\4............................", 32, SHEAF_E_FORMAT, "PyTorch"},
        {"\x89PNG............................", 32, SHEAF_E_FORMAT, "begins with bytes 89 50 4e 47"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_status(try_bytes((const uint8_t *)cases[i].bytes, cases[i].n), cases[i].status);
        expect_error(cases[i].says);
    }
}

Test(gguf_hostile, paths_that_are_no_files_are_refused, .timeout = 120) {
    sheaf_gguf *g = (sheaf_gguf *)&g;
    expect_status(sheaf_gguf_open("no/such/file.gguf", &g), SHEAF_E_IO);
    expect_error("no/such/file.gguf: No such file or directory");
    cr_assert_null(g);
    expect_status(sheaf_gguf_open(P_tmpdir, &g), SHEAF_E_IO);
    expect_error("a directory");
    expect_status(sheaf_gguf_open("/dev/zero", &g), SHEAF_E_IO);
    expect_error("a device or pipe");
    expect_status(sheaf_gguf_open("", &g), SHEAF_E_IO);
}

/* Case G03: wherever a file is cut, the error says so; a whole file opens. */
Test(gguf_hostile, a_file_cut_at_any_byte_is_refused, .timeout = 300) {
    gguf_build *b = small();
    size_t n;
    const uint8_t *p = gguf_build_bytes(b, &n);
    expect_status(try_bytes(p, n), SHEAF_OK);
    for (size_t cut = 0; cut < n; cut++) {
        sheaf_error_clear();
        sheaf_status s = try_bytes(p, cut);
        cr_assert(s == SHEAF_E_FORMAT, "cut at %zu of %zu: %s", cut, n, sheaf_status_name(s));
        cr_assert(sheaf_error()[0], "cut at %zu of %zu: no text", cut, n);
    }
    expect_error("tensor output.weight: data ends at byte");
    gguf_build_free(b);
}

Test(gguf_hostile, changed_bytes_never_crash, .timeout = 600) {
    gguf_build *b = small();
    size_t n, opened = 0;
    const uint8_t *p = gguf_build_bytes(b, &n);
    uint8_t *m = malloc(n);
    cr_assert_not_null(m);
    static const uint8_t values[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    for (size_t at = 0; at < n; at++)
        for (size_t v = 0; v < sizeof values; v++) {
            memcpy(m, p, n);
            m[at] = values[v];
            opened += try_bytes(m, n) == SHEAF_OK;
        }
    /* Eight bytes at a time: lengths, counts and offsets at their extremes. */
    static const uint64_t words[] = {UINT64_MAX, INT64_MAX, (uint64_t)1 << 63, (uint64_t)1 << 32, UINT64_MAX - 31};
    for (size_t at = 0; at + 8 <= n; at++)
        for (size_t v = 0; v < 5; v++) {
            memcpy(m, p, n);
            memcpy(m + at, &words[v], 8);
            opened += try_bytes(m, n) == SHEAF_OK;
        }
    cr_assert(opened > 0 && opened < n * 10, "%zu of %zu changed files opened", opened, n * 10);
    free(m);
    gguf_build_free(b);
}

Test(gguf_hostile, every_failed_allocation_is_a_clean_status, .timeout = 300) {
    char path[] = P_tmpdir "/sheaf-gguf-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    gguf_build *b = small();
    gguf_build_file(b, path);
    gguf_build_free(b);
    /* A failure that is tolerated (giving memory back) opens the file; the sweep ends when none was met. */
    int64_t failed = 0;
    for (watch w = {.fail_at = -1}; w.calls > w.fail_at;) {
        w = (watch){.fail_at = w.fail_at + 1};
        sheaf_gguf *g = NULL;
        sheaf_error_clear();
        sheaf_alloc_hook(on_alloc, &w);
        sheaf_status s = sheaf_gguf_open(path, &g);
        sheaf_alloc_hook(NULL, NULL);
        if (s) {
            expect_status(s, SHEAF_E_NO_MEMORY);
            cr_assert(sheaf_error()[0], "allocation %lld failed without text", (long long)w.fail_at);
            cr_assert_null(g);
        }
        failed += s != SHEAF_OK;
        sheaf_gguf_close(g);
        cr_assert(w.fail_at < 1000, "opening never succeeds");
    }
    cr_assert(failed > 6, "only %lld allocations were failed", (long long)failed);
    close(fd);
    unlink(path);
}

Test(gguf_hostile, a_file_that_shrinks_after_open_is_an_error, .timeout = 120) {
    char path[] = P_tmpdir "/sheaf-gguf-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    gguf_build *b = small();
    gguf_build_file(b, path);
    gguf_build_free(b);
    sheaf_gguf *g = NULL;
    expect_ok(sheaf_gguf_open(path, &g));
    const sheaf_gguf_tensor *t = sheaf_gguf_find_tensor(g, "output.weight");
    cr_assert_not_null(t);
    expect_ok(sheaf_gguf_unchanged(g));
    expect_int(ftruncate(fd, (off_t)t->offset + 10), 0);
    uint8_t bytes[54];
    expect_int(t->bytes, 54);
    expect_status(sheaf_gguf_read(g, t, 0, bytes, 54), SHEAF_E_IO);
    expect_error("output.weight: 44 bytes are missing");
    expect_status(sheaf_gguf_map(g), SHEAF_E_IO);
    expect_error("changed while it was open");
    expect_status(sheaf_gguf_unchanged(g), SHEAF_E_IO);
    sheaf_gguf_close(g);
    close(fd);
    unlink(path);
}
