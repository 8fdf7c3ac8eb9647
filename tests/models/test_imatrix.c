/* Importance matrices: both forms, and what is wrong with files that are none. */
#include "models/quantize.h"
#include "tests/support/gguf_build.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>

static sheaf_str str(const char *s) { return (sheaf_str){s, strlen(s)}; }

static void put(uint8_t **p, const void *bytes, size_t n) {
    memcpy(*p, bytes, n);
    *p += n;
}
static void put_i32(uint8_t **p, int32_t v) { put(p, &v, 4); }

/* A .dat of `n` tensors t0, t1, ... of three columns seen `calls` times; its length. */
static size_t make_dat(uint8_t *out, int n, int calls, bool tail) {
    uint8_t *p = out;
    put_i32(&p, n);
    for (int i = 0; i < n; i++) {
        char name[3] = {'t', (char)('0' + i), 0};
        put_i32(&p, 2);
        put(&p, name, 2);
        put_i32(&p, calls);
        put_i32(&p, 3);
        put(&p, (float[]){2.0f * (float)i, 4, 6}, 12);
    }
    if (tail) {
        put_i32(&p, 11);
        put_i32(&p, 4);
        put(&p, "wiki", 4);
    }
    return (size_t)(p - out);
}

static void expect_weights(const sheaf_imatrix *m, const char *tensor, const float *want, int64_t n) {
    int64_t got_n = 0;
    const float *w = sheaf_imatrix_find(m, str(tensor), &got_n);
    cr_assert(w != NULL, "%s is not there", tensor);
    expect_int(got_n, n);
    for (int64_t i = 0; i < n; i++)
        cr_assert(w[i] == want[i], "%s[%lld] is %g, expected %g", tensor, (long long)i, w[i], want[i]);
}

Test(imatrix, the_older_form_is_read, .timeout = 30) {
    uint8_t bytes[1024];
    for (int tail = 0; tail < 2; tail++) {
        sheaf_imatrix *m;
        size_t n = make_dat(bytes, 3, 2, tail);
        expect_ok(sheaf_imatrix_open_memory(bytes, n, &m));
        expect_int(sheaf_imatrix_entries(m), 3);
        expect_weights(m, "t2", (float[]){2, 2, 3}, 3);
        expect_int(sheaf_imatrix_chunks(m), tail ? 11 : 0);
        expect_text(sheaf_imatrix_dataset(m), tail ? "wiki" : "");
        int64_t none;
        cr_assert(sheaf_imatrix_find(m, str("t3"), &none) == NULL && sheaf_imatrix_find(m, str(""), &none) == NULL);
        sheaf_imatrix_free(m);
    }
    sheaf_imatrix *m;
    expect_ok(sheaf_imatrix_open_memory(bytes, make_dat(bytes, 1, 0, false), &m)); /* never called: as it stands */
    expect_weights(m, "t0", (float[]){0, 4, 6}, 3);
    sheaf_imatrix_free(m);
}

static gguf_build *with_sums(const char *counts_name, sheaf_type type, const float *sums, const float *counts) {
    static const int64_t shape[] = {2, 2}, one[] = {1, 2};
    gguf_build *b = gguf_build_new();
    gguf_build_str(b, "general.type", "imatrix");
    gguf_build_strs(b, "imatrix.datasets", (const char *const[]){"tales"}, 1);
    gguf_build_u32(b, "imatrix.chunk_count", 5);
    gguf_build_tensor_f32(b, "blk.0.ffn_down_exps.weight.in_sum2", type, 2, shape, sums);
    gguf_build_tensor_f32(b, counts_name, SHEAF_F32, 2, one, counts);
    return b;
}

Test(imatrix, gguf_gives_means_by_matrix, .timeout = 30) {
    gguf_build *b = with_sums("blk.0.ffn_down_exps.weight.counts", SHEAF_F32, (float[]){8, 4, 3, 3}, (float[]){4, 0});
    size_t n;
    const uint8_t *bytes = gguf_build_bytes(b, &n);
    sheaf_imatrix *m;
    expect_ok(sheaf_imatrix_open_memory(bytes, n, &m));
    expect_weights(m, "blk.0.ffn_down_exps.weight", (float[]){2, 1, 1, 1}, 4); /* the second saw nothing */
    expect_int(sheaf_imatrix_chunks(m), 5);
    expect_text(sheaf_imatrix_dataset(m), "tales");
    sheaf_imatrix_free(m);
    gguf_build_free(b);
}

static void expect_bad(const uint8_t *bytes, size_t n, const char *says) {
    sheaf_imatrix *m = (void *)1;
    expect_status(sheaf_imatrix_open_memory(bytes, n, &m), SHEAF_E_FORMAT);
    cr_assert(m == NULL);
    expect_error(says);
}

Test(imatrix, odd_gguf_files_are_refused, .timeout = 30) {
    static const float sums[] = {8, 4, 3, 3}, counts[] = {4, 1}, none[] = {NAN, 1}, less[] = {8, -4, 3, 3};
    const struct {
        const char *counts_name;
        sheaf_type type;
        const float *sums, *counts;
        const char *says;
    } rows[] = {
        {"other.counts", SHEAF_F32, sums, counts, "have no counts"},
        {"blk.0.ffn_down_exps.weight.counts", SHEAF_F16, sums, counts, "not f32"},
        {"blk.0.ffn_down_exps.weight.counts", SHEAF_F32, sums, none, "a count is no finite number"},
        {"blk.0.ffn_down_exps.weight.counts", SHEAF_F32, less, counts, "column 1 is -1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gguf_build *b = with_sums(rows[i].counts_name, rows[i].type, rows[i].sums, rows[i].counts);
        size_t n;
        const uint8_t *bytes = gguf_build_bytes(b, &n);
        expect_bad(bytes, n, rows[i].says);
        gguf_build_free(b);
    }
    gguf_build *b = gguf_build_new();
    size_t n;
    const uint8_t *bytes = gguf_build_bytes(b, &n);
    expect_bad(bytes, n, "no importance");
    gguf_build_free(b);
}

Test(imatrix, every_cut_of_an_older_file_is_refused, .timeout = 30) {
    uint8_t bytes[1024];
    size_t n = make_dat(bytes, 3, 2, true), whole = make_dat(bytes, 3, 2, false);
    make_dat(bytes, 3, 2, true);
    for (size_t cut = 0; cut < n; cut++) {
        sheaf_imatrix *m = NULL;
        sheaf_status s = sheaf_imatrix_open_memory(bytes, cut, &m);
        /* the end without a dataset's name is one that writers make too */
        cr_assert((s == SHEAF_OK) == (cut == whole || cut == whole + 4), "%zu of %zu bytes: %s", cut, n, sheaf_error());
        sheaf_imatrix_free(m);
    }
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX};
    static const size_t fields[] = {0, 4, 14}; /* entries, length of a name, values */
    for (int i = 0; i < 3; i++) {
        for (int f = 0; f < 3; f++) {
            make_dat(bytes, 3, 2, true);
            memcpy(bytes + fields[f], &wrong[i], 4);
            sheaf_imatrix *m = NULL;
            expect_status(sheaf_imatrix_open_memory(bytes, n, &m), SHEAF_E_FORMAT);
        }
    }
    expect_bad(bytes, make_dat(bytes, 0, 0, false), "number of entries is 0");
}

Test(imatrix, a_tensor_may_not_occur_twice, .timeout = 30) {
    uint8_t bytes[1024];
    size_t n = make_dat(bytes, 2, 1, false);
    bytes[4 + 26 + 5] = '0'; /* t1 becomes t0 */
    expect_bad(bytes, n, "t0 occurs twice");
}

static sheaf_status read_it(void *ctx) {
    uint8_t bytes[1024];
    sheaf_imatrix *m = NULL;
    (void)ctx;
    sheaf_status s = sheaf_imatrix_open_memory(bytes, make_dat(bytes, 3, 2, true), &m);
    sheaf_imatrix_free(m);
    return s;
}

Test(imatrix, every_failed_allocation_is_a_status, .timeout = 30) { fail_each_allocation(read_it, NULL); }
