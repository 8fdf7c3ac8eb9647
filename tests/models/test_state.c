/* A context's state: saved on any number of devices it goes on with the same bits on any other, and bytes that are
 * not what was saved are refused before anything changes. */
#include "models/state_internal.h"
#include "tensor/hash.h"
#include "tests/models/model_support.h"

enum { STEPS = 6 };

static const char *const lists[] = {"cpu", "cpu/2", "cpu/3", "cpu/5"};
enum { N_LISTS = 4 };

static void start(rig *r, const char *devices, sheaf_type k, sheaf_type v) {
    rig_devices(r, devices);
    sheaf_context_options o = sheaf_context_defaults();
    o.n_ctx = 300;
    o.n_ubatch = 8;
    o.n_seq = 2;
    o.type_k = k;
    o.type_v = v;
    rig_load(r, &o);
}

/* Two sequences, one of them with a hole, so that cells are free among others. */
static void live(sheaf_context *c) {
    int32_t ids[30], seq[30];
    for (int i = 0; i < 30; i++) ids[i] = (i * 37 + 5) % 280, seq[i] = i % 3 == 0;
    expect_ok(sheaf_decode(c, &(sheaf_batch){.n = 30, .token = ids, .seq = seq}));
    if (!c->window_cells.n) expect_ok(sheaf_kv_remove(c, 0, 4, 9));
    expect_ok(sheaf_decode(c, &(sheaf_batch){.n = 2, .token = ids}));
}

/* Hashes of logits from here on, of both sequences. */
static void go_on(sheaf_context *c, uint64_t hash[STEPS]) {
    for (int i = 0; i < STEPS; i++) {
        int32_t id = (i * 51 + 9) % 280, seq = i % 2;
        expect_ok(sheaf_decode(c, &(sheaf_batch){.n = 1, .token = &id, .seq = &seq}));
        hash[i] = sheaf_logits_hash(c, 0);
    }
}

static uint8_t *save(sheaf_context *c, size_t *n) {
    expect_ok(sheaf_state_size(c, 5, n));
    uint8_t *bytes = malloc(*n);
    expect_ok(sheaf_state_get(c, "hello", 5, bytes, *n));
    return bytes;
}

static void expect_same(const uint64_t *got, const uint64_t *wanted, const char *model, const char *from,
                        const char *to) {
    for (int i = 0; i < STEPS; i++)
        cr_assert(got[i] == wanted[i], "%s, %s to %s, step %d: logits hash %016llx, uninterrupted %016llx", model, from,
                  to, i, (unsigned long long)got[i], (unsigned long long)wanted[i]);
}

/* Saved on every N, restored on every M. The bytes do not tell N. */
static void every_pair(const char *model, sheaf_type k, sheaf_type v) {
    rig r;
    uint8_t *bytes[N_LISTS];
    size_t n[N_LISTS], note_bytes;
    uint64_t whole[STEPS], hash[STEPS];
    rig_file(&r, model);
    for (int i = 0; i < N_LISTS; i++) {
        start(&r, lists[i], k, v);
        live(r.context);
        bytes[i] = save(r.context, &n[i]);
        go_on(r.context, hash);
        if (i == 0) memcpy(whole, hash, sizeof whole);
        expect_same(hash, whole, model, lists[i], "itself");
        expect_int(n[i], n[0]);
        cr_assert(memcmp(bytes[i], bytes[0], n[0]) == 0, "%s saved on %s: other bytes", model, lists[i]);
        rig_unload(&r);
    }
    for (int to = 0; to < N_LISTS; to++) {
        start(&r, lists[to], k, v);
        go_on(r.context, hash); /* something else was here */
        for (int from = 0; from < N_LISTS; from++) {
            void *note;
            expect_ok(sheaf_state_set(r.context, bytes[from], n[from], &note, &note_bytes));
            expect_int(note_bytes, 5);
            cr_assert(memcmp(note, "hello", 5) == 0);
            cr_assert_null(sheaf_logits(r.context, 0));
            sheaf_free(note);
            go_on(r.context, hash);
            expect_same(hash, whole, model, lists[from], lists[to]);
        }
        rig_unload(&r);
    }
    for (int i = 0; i < N_LISTS; i++) free(bytes[i]);
    remove_folder(r.folder);
}

Test(state, uneven_heads_go_on_with_the_same_bits, .timeout = 300) { every_pair("h9k3-f32", SHEAF_F16, SHEAF_F16); }
Test(state, shared_heads_go_on_with_the_same_bits, .timeout = 300) { every_pair("h8k1-f32", SHEAF_F32, SHEAF_F32); }
Test(state, quantised_caches_go_on_with_the_same_bits, .timeout = 300) {
    every_pair("dense-q8_0", SHEAF_Q8_0, SHEAF_Q4_0);
    if (!SANITIZED) every_pair("h9k3-q8_0", SHEAF_F32, SHEAF_BF16);
}
Test(state, windowed_layers_go_on_with_the_same_bits, .timeout = 300) {
    every_pair("gemma3-f32", SHEAF_F16, SHEAF_F16);
    if (!SANITIZED) every_pair("gemma2-f32", SHEAF_F32, SHEAF_F16);
}
Test(state, latent_caches_go_on_with_the_same_bits, .timeout = 300) {
    every_pair("deepseek2-f32", SHEAF_F16, SHEAF_F16);
}

/* A file, and shares that leave a device without heads. */
Test(state, a_file_goes_from_uneven_shares_to_one, .timeout = 120) {
    static const float shares[] = {1, 0, 1};
    rig r;
    char path[600];
    uint64_t whole[STEPS], hash[STEPS];
    void *note;
    size_t n;
    rig_file(&r, "h9k3-f32");
    snprintf(path, sizeof path, "%s/a.state", r.folder);
    rig_devices(&r, "cpu/3");
    r.options.tensor_split = shares;
    r.options.n_tensor_split = 3;
    sheaf_context_options o = sheaf_context_defaults();
    o.n_ctx = 300, o.n_ubatch = 8, o.n_seq = 2;
    rig_load(&r, &o);
    live(r.context);
    expect_ok(sheaf_state_save(r.context, path, NULL, 0));
    go_on(r.context, whole);
    rig_unload(&r);
    start(&r, "cpu", SHEAF_F16, SHEAF_F16);
    expect_ok(sheaf_state_restore(r.context, path, &note, &n));
    cr_assert_null(note);
    expect_int(n, 0);
    go_on(r.context, hash);
    expect_same(hash, whole, "h9k3-f32", "cpu/3 of 1:0:1", "cpu");
    rig_end(&r);
}

/* --- what is refused ------------------------------------------------------------------------------------- */

static void expect_refused(sheaf_context *c, const void *bytes, size_t n, sheaf_status status, const char *says) {
    void *note = &note;
    size_t note_bytes = 9;
    sheaf_status s = sheaf_state_set(c, bytes, n, &note, &note_bytes);
    cr_assert(s == status, "%s, expected %s, about %s: %s", sheaf_status_name(s), sheaf_status_name(status), says,
              sheaf_error());
    cr_assert(strstr(sheaf_error(), says) != NULL, "'%s' does not say '%s'", sheaf_error(), says);
    cr_assert_null(note);
    expect_int(note_bytes, 0);
}

/* Cut at every length, every byte altered: refused, and the context is what it was. */
Test(state, short_and_altered_bytes_change_nothing, .timeout = 300) {
    rig r;
    size_t n, after;
    int32_t ids[] = {4, 99, 31};
    rig_file(&r, "h9k3-f32");
    start(&r, "cpu/2", SHEAF_Q8_0, SHEAF_Q8_0);
    expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 3, .token = ids}));
    uint8_t *bytes = save(r.context, &n), *copy;
    size_t step = SANITIZED ? 7 : 1;
    for (size_t cut = 0; cut < n; cut += step) {
        uint8_t *exact = malloc(cut + 1); /* so that a sanitizer sees a read behind it */
        memcpy(exact, bytes, cut);
        exact = realloc(exact, cut ? cut : 1);
        expect_refused(r.context, exact, cut, SHEAF_E_FORMAT, "saved state");
        free(exact);
    }
    for (size_t at = 0; at < n; at += step) {
        bytes[at] ^= (uint8_t)(1 << at % 8);
        expect_refused(r.context, bytes, n, SHEAF_E_FORMAT, "saved state");
        bytes[at] ^= (uint8_t)(1 << at % 8);
    }
    copy = save(r.context, &after);
    expect_int(after, n);
    cr_assert(memcmp(copy, bytes, n) == 0, "the context has changed");
    free(copy);
    free(bytes);
    rig_end(&r);
}

/* A checksum proves nothing about who wrote it: with right ones, wrong numbers are refused too. */
static void sign(uint8_t *bytes, size_t n) {
    state_header h;
    uint64_t sum = SHEAF_HASH_SEED;
    memcpy(&h, bytes, sizeof h);
    h.checksum = sheaf_hash_bytes(SHEAF_HASH_SEED, &h, offsetof(state_header, checksum));
    memcpy(bytes, &h, sizeof h);
    for (size_t at = 0; at < n - 8; at += STATE_BLOCK) {
        size_t left = n - 8 - at;
        sum = sheaf_hash_bytes(sum, bytes + at, left < STATE_BLOCK ? left : STATE_BLOCK);
    }
    if ((n - 8) % STATE_BLOCK == 0) sum = sheaf_hash_bytes(sum, bytes, 0);
    memcpy(bytes + n - 8, &sum, 8);
}

typedef struct lie {
    size_t at; /* byte; an int32 is put there */
    int32_t value;
    sheaf_status status;
    const char *says;
} lie;

#define IN_HEADER(field) offsetof(state_header, field)
#define PAIR(i, which)   (sizeof(state_header) + 8 * (i) + 4 * (which))

static void refuse_lies(const char *model, const lie *lies, size_t n_lies) {
    rig r;
    size_t n;
    rig_file(&r, model);
    start(&r, "cpu/2", SHEAF_F16, SHEAF_F16);
    live(r.context);
    uint8_t *bytes = save(r.context, &n), *copy = malloc(n);
    for (size_t i = 0; i < n_lies; i++) {
        memcpy(copy, bytes, n);
        memcpy(copy + lies[i].at, &lies[i].value, sizeof lies[i].value);
        sign(copy, n);
        expect_refused(r.context, copy, n, lies[i].status, lies[i].says);
    }
    memcpy(copy, bytes, n);
    sign(copy, n);
    expect_ok(sheaf_state_set(r.context, copy, n, NULL, NULL)); /* the signature is right, it is the lies */
    free(copy);
    free(bytes);
    rig_end(&r);
}

Test(state, numbers_that_lie_are_refused, .timeout = 120) {
    static const lie lies[] = {
        {IN_HEADER(magic), 7, SHEAF_E_FORMAT, "no saved state"},
        {IN_HEADER(version), 2, SHEAF_E_FORMAT, "version 2"},
        {IN_HEADER(byte_order), 0x04030201, SHEAF_E_FORMAT, "byte order 04030201"},
        {IN_HEADER(fingerprint), 0, SHEAF_E_FORMAT, "another model"},
        {IN_HEADER(type_k), SHEAF_Q8_0, SHEAF_E_FORMAT, "keys of q8_0 and values of f16, this one f16 and f16"},
        {IN_HEADER(type_v), -1, SHEAF_E_FORMAT, "an unknown type"},
        {IN_HEADER(n_layer), 3, SHEAF_E_FORMAT, "3 layers"},
        {IN_HEADER(window), 4, SHEAF_E_FORMAT, "a window of 4"},
        {IN_HEADER(long_positions), 1, SHEAF_E_FORMAT, "long context"},
        {IN_HEADER(n_seq), 0, SHEAF_E_FORMAT, "0 sequences"},
        {IN_HEADER(n_seq), INT32_MAX, SHEAF_E_FORMAT, "2147483647 sequences"},
        {IN_HEADER(cells), -1, SHEAF_E_FORMAT, "-1 and"},
        {IN_HEADER(cells), 301, SHEAF_E_RANGE, "301 cells"},
        {IN_HEADER(cells), INT32_MAX, SHEAF_E_RANGE, "2147483647 cells"},
        {IN_HEADER(window_cells), 1, SHEAF_E_RANGE, "(1 of layers"},
        {IN_HEADER(window_hand), -1, SHEAF_E_FORMAT, "hand at -1"},
        {IN_HEADER(note_bytes), 4, SHEAF_E_FORMAT, "do not make"},
        {IN_HEADER(note_bytes) + 4, -1, SHEAF_E_FORMAT, "do not make"},
        {IN_HEADER(rows_bytes), 8, SHEAF_E_FORMAT, "do not make"},
        {IN_HEADER(rows_bytes) + 4, -1, SHEAF_E_FORMAT, "do not make"},
        {PAIR(1, 0), 2, SHEAF_E_RANGE, "cell 1 holds sequence 2, this context has 2"},
        {PAIR(1, 0), INT32_MIN, SHEAF_E_FORMAT, "cell 1 of"},
        {PAIR(1, 1), -5, SHEAF_E_FORMAT, "position -5"},
        {PAIR(1, 1), INT32_MAX, SHEAF_E_FORMAT, "position 2147483647"},
        {PAIR(1, 1), 1, SHEAF_E_FORMAT, "two cells hold position 1 of sequence 0"},
        {PAIR(1, 0), -1, SHEAF_E_FORMAT, "do not make"}, /* its position is 0: a free cell, one row too many */
    };
    refuse_lies("h9k3-f32", lies, sizeof lies / sizeof *lies);
}

/* Layers with a window: what claims a cell relies on there being one that may be given up. */
Test(state, windows_that_lie_are_refused, .timeout = 120) {
    enum { CELLS = 32 };
    static const lie lies[] = {
        {PAIR(CELLS + 1, 1), 100, SHEAF_E_FORMAT, "position 100"},
        {PAIR(CELLS + 2, 1), 0, SHEAF_E_FORMAT, "two cells hold"},
        {IN_HEADER(window_hand), INT32_MIN, SHEAF_E_FORMAT, "hand"},
    };
    refuse_lies("gemma3-f32", lies, sizeof lies / sizeof *lies);
}

Test(state, another_model_cache_or_context_is_refused, .timeout = 120) {
    rig r;
    size_t n;
    void *note;
    rig_file(&r, "h9k3-f32");
    start(&r, "cpu", SHEAF_F16, SHEAF_F16);
    live(r.context);
    uint8_t *bytes = save(r.context, &n);
    expect_status(sheaf_state_get(r.context, NULL, 5, bytes, n - 1), SHEAF_E_RANGE);
    rig_unload(&r);
    start(&r, "cpu", SHEAF_F16, SHEAF_Q8_0);
    expect_refused(r.context, bytes, n, SHEAF_E_FORMAT, "values of f16");
    rig_unload(&r);
    sheaf_context_options o = sheaf_context_defaults();
    o.n_ctx = 20, o.n_seq = 2;
    rig_devices(&r, "cpu");
    rig_load(&r, &o);
    expect_refused(r.context, bytes, n, SHEAF_E_RANGE, "do not fit this context's 20");
    char path[600];
    snprintf(path, sizeof path, "%s/none.state", r.folder);
    expect_status(sheaf_state_restore(r.context, path, &note, &n), SHEAF_E_NOT_FOUND);
    expect_status(sheaf_state_restore(r.context, r.folder, &note, &n), SHEAF_E_IO);
    snprintf(path, sizeof path, "%s/no/folder.state", r.folder);
    expect_status(sheaf_state_save(r.context, path, NULL, 0), SHEAF_E_IO);
    rig_end(&r);
    rig_file(&r, "h9k3-q8_0");
    start(&r, "cpu", SHEAF_F16, SHEAF_F16);
    expect_refused(r.context, bytes, n, SHEAF_E_FORMAT, "another model");
    rig_end(&r);
    free(bytes);
}
