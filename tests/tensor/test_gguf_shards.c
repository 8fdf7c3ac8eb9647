/* Split GGUF sets (case G02): any shard opens the set, and every way to get it wrong is named. */
#include "tensor/gguf.h"
#include "tests/support/expect.h"
#include "tests/support/gguf_build.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

enum { SHARDS = 3 };

typedef struct set {
    char folder[64];
    char path[SHARDS][128];
} set;

/* What shard i says; the defaults are the truth. */
typedef struct claim {
    int no, count, tensors;
    const char *tensor;
} claim;

static const claim truth[SHARDS] = {{0, 3, 2, NULL}, {1, 3, 2, "blk.0.w"}, {2, 3, 2, "blk.1.w"}};

/* Shard 1 carries metadata only, as the usual splitting tool makes it. */
static gguf_build *shard(int i, const claim *c) {
    gguf_build *b = gguf_build_new();
    if (i == 0) gguf_build_str(b, "general.architecture", "llama");
    gguf_build_u16(b, "split.no", (uint16_t)c->no);
    gguf_build_u16(b, "split.count", (uint16_t)c->count);
    gguf_build_i32(b, "split.tensors.count", c->tensors);
    float values[4] = {(float)i, 1, 2, 3};
    if (c->tensor) gguf_build_tensor_f32(b, c->tensor, SHEAF_F32, 1, (int64_t[]){4}, values);
    return b;
}

static void write_shard(const set *s, int i, const claim *c) {
    gguf_build *b = shard(i, c);
    gguf_build_file(b, s->path[i]);
    gguf_build_free(b);
}

static void make_set(set *s) {
    snprintf(s->folder, sizeof s->folder, P_tmpdir "/sheaf-shards-XXXXXX");
    cr_assert_not_null(mkdtemp(s->folder));
    for (int i = 0; i < SHARDS; i++) {
        snprintf(s->path[i], sizeof s->path[i], "%s/m-%05d-of-%05d.gguf", s->folder, i + 1, SHARDS);
        write_shard(s, i, &truth[i]);
    }
}

static void remove_set(const set *s) {
    for (int i = 0; i < SHARDS; i++) unlink(s->path[i]);
    rmdir(s->folder);
}

static sheaf_status try_open(const char *path) {
    sheaf_gguf *g = NULL;
    sheaf_status s = sheaf_gguf_open(path, &g);
    cr_assert((s == SHEAF_OK) == (g != NULL));
    sheaf_gguf_close(g);
    return s;
}

Test(gguf_shards, any_shard_opens_the_whole_set, .timeout = 120) {
    set s;
    make_set(&s);
    for (int i = 0; i < SHARDS; i++) {
        sheaf_gguf *g = NULL;
        expect_ok(sheaf_gguf_open(s.path[i], &g));
        expect_int(sheaf_gguf_shards(g), SHARDS);
        expect_int(sheaf_gguf_n_tensors(g), 2);
        sheaf_str arch;
        expect_ok(sheaf_gguf_get_str(g, "general.architecture", &arch));
        for (int k = 1; k < SHARDS; k++) {
            const sheaf_gguf_tensor *t = sheaf_gguf_find_tensor(g, truth[k].tensor);
            cr_assert_not_null(t);
            expect_int(t->shard, k);
            expect_text(sheaf_gguf_path(g, k), s.path[k]);
            float v[4];
            expect_ok(sheaf_gguf_read(g, t, 0, v, sizeof v));
            expect_int(v[0], k);
            expect_ok(sheaf_gguf_map(g));
            expect_int(memcmp(sheaf_gguf_mapped(g, t), v, sizeof v), 0);
        }
        sheaf_gguf_close(g);
    }
    remove_set(&s);
}

Test(gguf_shards, a_missing_shard_is_named, .timeout = 120) {
    set s;
    make_set(&s);
    unlink(s.path[2]);
    expect_status(try_open(s.path[0]), SHEAF_E_IO);
    expect_error("m-00003-of-00003.gguf: No such file");
    expect_error("shard 3 of 3");
    remove_set(&s);
}

Test(gguf_shards, shards_that_disagree_are_named, .timeout = 120) {
    static const struct {
        int i;
        claim c;
        const char *says;
    } cases[] = {
        {1, {1, 4, 2, "blk.0.w"}, "00002-of-00003.gguf: expected split.count 3"},
        {0, {0, 4, 2, NULL}, "expected 3 shards by its name, found split.count 4"},
        {1, {2, 3, 2, "blk.0.w"}, "00002-of-00003.gguf: expected split.no 1 by its name, found 2"},
        {2, {2, 3, 2, "blk.0.w"}, "00003-of-00003.gguf: tensor blk.0.w is also in"},
        {2, {2, 3, 2, NULL}, "expected 2 tensors over all shards (split.tensors.count), found 1"},
        {2, {2, 3, 9, "blk.1.w"}, "00003-of-00003.gguf: expected split.tensors.count 2"},
        {0, {3, 3, 2, NULL}, "split.no 3 of split.count 3 is not possible"},
        {0, {1, 3, 2, NULL}, "expected shard 1 by its name (split.no 0), found split.no 1"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        set s;
        make_set(&s);
        write_shard(&s, cases[k].i, &cases[k].c);
        expect_status(try_open(s.path[0]), SHEAF_E_FORMAT);
        expect_error(cases[k].says);
        remove_set(&s);
    }
}

Test(gguf_shards, a_renamed_shard_says_what_name_it_needs, .timeout = 120) {
    set s;
    make_set(&s);
    char renamed[128];
    snprintf(renamed, sizeof renamed, "%s/model.gguf", s.folder);
    expect_int(rename(s.path[1], renamed), 0);
    expect_status(try_open(renamed), SHEAF_E_FORMAT);
    expect_error("is shard 2 of 3, but its name does not end in -00002-of-00003.gguf");
    unlink(renamed);
    remove_set(&s);
}

static void append(const char *to, const char *from) {
    uint8_t bytes[4096];
    FILE *a = fopen(from, "rb"), *b = fopen(to, "ab");
    cr_assert(a && b);
    size_t n = fread(bytes, 1, sizeof bytes, a);
    expect_int(fwrite(bytes, 1, n, b), n);
    fclose(a);
    fclose(b);
}

Test(gguf_shards, shards_joined_by_cat_are_recognised, .timeout = 120) {
    set s;
    make_set(&s);
    append(s.path[1], s.path[2]);
    expect_status(try_open(s.path[1]), SHEAF_E_FORMAT);
    expect_error("shards joined by cat");
    append(s.path[0], s.path[1]);
    expect_status(try_open(s.path[0]), SHEAF_E_FORMAT);
    expect_error("shards joined by cat");
    remove_set(&s);
}

Test(gguf_shards, a_shard_in_memory_says_that_it_needs_files, .timeout = 120) {
    gguf_build *b = shard(1, &truth[1]);
    size_t n;
    const uint8_t *p = gguf_build_bytes(b, &n);
    sheaf_gguf *g = NULL;
    expect_status(sheaf_gguf_open_memory(p, n, &g), SHEAF_E_UNSUPPORTED);
    expect_error("shard 2 of 3");
    gguf_build_free(b);
}

typedef struct countdown {
    int64_t left;
} countdown;

static bool fail_when_zero(void *ctx, size_t size) {
    (void)size;
    return ((countdown *)ctx)->left-- != 0;
}

Test(gguf_shards, every_failed_allocation_is_a_clean_status, .timeout = 300) {
    set s;
    make_set(&s);
    /* A failure that is tolerated (giving memory back) opens the file; the sweep ends when none was met. */
    int64_t k = 0, failed = 0;
    for (countdown c = {.left = -1}; c.left < 0; k++) {
        c.left = k;
        sheaf_gguf *g = NULL;
        sheaf_alloc_hook(fail_when_zero, &c);
        sheaf_status status = sheaf_gguf_open(s.path[1], &g);
        sheaf_alloc_hook(NULL, NULL);
        if (status) expect_status(status, SHEAF_E_NO_MEMORY);
        failed += status != SHEAF_OK;
        sheaf_gguf_close(g);
        cr_assert(k < 1000);
    }
    cr_assert(failed > 15, "only %lld allocations were failed", (long long)failed);
    remove_set(&s);
}
