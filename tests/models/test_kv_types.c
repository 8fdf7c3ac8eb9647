/* KV caches of every type: each pair of types on several devices against one, windowed layers and latent attention too,
 * and how far each type is from a cache in f32. */
#include "models/model_internal.h"
#include "tests/models/model_support.h"

static const sheaf_type types[] = {SHEAF_F32,  SHEAF_F16,  SHEAF_BF16, SHEAF_Q8_0,  SHEAF_Q5_1,
                                   SHEAF_Q5_0, SHEAF_Q4_1, SHEAF_Q4_0, SHEAF_IQ4_NL};
/* What rounding keys and values to each may cost: NMSE of the logits. */
static const double bounds[] = {0, 1e-6, 1e-4, 1e-4, 1e-2, 1e-2, 3e-2, 3e-2, 3e-2};
enum { TYPES = sizeof types / sizeof *types, PROMPT = 40, MORE = 16 };

static sheaf_context_options options_of(sheaf_type k, sheaf_type v) {
    sheaf_context_options o = sheaf_context_defaults();
    o.n_ctx = 96;
    o.n_ubatch = 16;
    o.type_k = k;
    o.type_v = v;
    return o;
}

/* Runs the prompt and what follows; the last token's logits stay in *c. */
static void run(sheaf_context *c) {
    int32_t id[PROMPT + MORE];
    for (int i = 0; i < PROMPT + MORE; i++) id[i] = (i * 37 + i * i % 11 + 5) % 280;
    expect_ok(sheaf_decode(c, &(sheaf_batch){.n = PROMPT, .token = id}));
    for (int i = PROMPT; i < PROMPT + MORE; i++) expect_ok(sheaf_decode(c, &(sheaf_batch){.n = 1, .token = &id[i]}));
}

static uint64_t hash_with(sheaf_model *m, sheaf_type k, sheaf_type v) {
    sheaf_context *c;
    sheaf_context_options o = options_of(k, v);
    expect_ok(sheaf_context_new(m, &o, &c));
    expect_int(c->cache_k[0]->type, k); /* never another one in silence */
    expect_int(c->cache_v[0]->type, v);
    run(c);
    uint64_t hash = sheaf_logits_hash(c, 0);
    sheaf_context_free(c);
    return hash;
}

/* Hashes of every pair on one list of devices; `same`: only pairs of one type. */
static void all_pairs(const char *name, const char *devices, bool same, uint64_t hash[TYPES][TYPES]) {
    rig r;
    rig_file(&r, name);
    rig_devices(&r, devices);
    expect_ok(sheaf_model_load(r.path, &r.options, &r.model));
    for (int k = 0; k < TYPES; k++)
        for (int v = 0; v < TYPES; v++)
            if (!same || k == v) hash[k][v] = hash_with(r.model, types[k], types[v]);
    rig_end(&r);
}

static void same_bits(const char *name, const char *const *lists, int n, bool same) {
    uint64_t one[TYPES][TYPES] = {{0}}, many[TYPES][TYPES] = {{0}};
    all_pairs(name, "cpu", same, one);
    for (int i = 0; i < n; i++) {
        all_pairs(name, lists[i], same, many);
        for (int k = 0; k < TYPES; k++)
            for (int v = 0; v < TYPES; v++)
                cr_assert(one[k][v] == many[k][v], "%s on %s, keys %s, values %s: %016llx, on one device %016llx", name,
                          lists[i], sheaf_type_name(types[k]), sheaf_type_name(types[v]),
                          (unsigned long long)many[k][v], (unsigned long long)one[k][v]);
    }
}

Test(kv_types, every_pair_on_two_devices_gives_the_bits_of_one, .timeout = 600) {
    static const char *const lists[] = {"cpu/2"};
    same_bits("dense-f32", lists, 1, UNDER_TSAN);
}

/* KV heads on several devices at once, windows, experts. */
Test(kv_types, every_type_on_any_number_of_devices, .timeout = 600) {
    static const char *const lists[] = {"cpu/2", "cpu/3", "cpu/5"};
    static const char *const names[] = {"h9k3-q8_0",     "gemma2-q8_0", "gemma3-q5_0",
                                        "gpt-oss-mxfp4", "phi3-q8_0",   "qwen3moe-q8_0"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) same_bits(names[i], lists, 3, true);
}

/* One latent key for all heads, of which the value is a part: both must be whole blocks. */
Test(kv_types, latent_attention_takes_every_type_or_says_why_not, .timeout = 600) {
    static const char *const lists[] = {"cpu", "cpu/2", "cpu/3"};
    uint64_t hash[3][TYPES];
    for (int d = 0; d < 3; d++) {
        rig r;
        fixture_case c;
        rig_file(&r, "deepseek2-f32");
        expect_int(fixture_find(GOLDEN_DIR "/cases.txt", "deepseek2-f32", &c), 0);
        c.width = 128, c.head_size = 64; /* a latent of 64, and 32 that are rotated */
        expect_int(fixture_write(&c, r.path), 0);
        rig_devices(&r, lists[d]);
        expect_ok(sheaf_model_load(r.path, &r.options, &r.model));
        for (int t = 0; t < TYPES; t++) {
            hash[d][t] = hash_with(r.model, types[t], types[t]);
            cr_assert(hash[d][t] == hash[0][t], "%s on %s", sheaf_type_name(types[t]), lists[d]);
        }
        rig_end(&r);
    }
    static const char *const odd[] = {"deepseek2-q8_0", "deepseek2-f32"}; /* 32 + 16, 48 + 16 */
    for (int i = 0; i < 2; i++) {
        rig r;
        sheaf_context_options o = options_of(SHEAF_Q8_0, SHEAF_Q8_0);
        rig_file(&r, odd[i]);
        rig_devices(&r, "cpu");
        expect_ok(sheaf_model_load(r.path, &r.options, &r.model));
        expect_status(sheaf_context_new(r.model, &o, &r.context), SHEAF_E_UNSUPPORTED);
        expect_error("KV cache: type q8_0 for");
        rig_end(&r);
    }
}

static void check_distance(const char *name) {
    rig r;
    sheaf_context *exact, *c;
    sheaf_context_options o = options_of(SHEAF_F32, SHEAF_F32);
    rig_file(&r, name);
    rig_devices(&r, "cpu");
    expect_ok(sheaf_model_load(r.path, &r.options, &r.model));
    expect_ok(sheaf_context_new(r.model, &o, &exact));
    run(exact);
    for (int t = 1; t < TYPES; t++) {
        o = options_of(types[t], types[t]);
        expect_ok(sheaf_context_new(r.model, &o, &c));
        run(c);
        double e = golden_nmse(sheaf_logits(c, 0), sheaf_logits(exact, 0), r.model->hp.n_vocab);
        double bound = bounds[t] + (strstr(name, "f32") ? 0 : 1e-3); /* activations then round otherwise, too */
        cr_assert(e > 0 && e <= bound, "%s, cache of %s: NMSE %.3g, bound %.3g", name, sheaf_type_name(types[t]), e,
                  bound);
        sheaf_context_free(c);
    }
    sheaf_context_free(exact);
    rig_end(&r);
}

Test(kv_types, each_is_as_close_to_f32_as_it_can_be, .timeout = 300) {
    check_distance("dense-f32");
    check_distance("qwen3-f32");
    check_distance("gemma2-q8_0");
}

/* What the first layer's cache holds does not depend on any cache: it must be the f32 rows, encoded. */
Test(kv_types, a_cache_holds_the_encoded_rows, .timeout = 300) {
    rig r;
    sheaf_context *exact, *c;
    sheaf_context_options o = options_of(SHEAF_F32, SHEAF_F32);
    rig_file(&r, "dense-f32");
    rig_devices(&r, "cpu/3");
    expect_ok(sheaf_model_load(r.path, &r.options, &r.model));
    expect_ok(sheaf_context_new(r.model, &o, &exact));
    run(exact);
    enum { ROW = 128, CELLS = PROMPT + MORE }; /* 4 heads of 32 */
    static float rows[ROW * CELLS];
    static unsigned char want[sizeof rows], got[sizeof rows];
    for (int t = 1; t < TYPES; t++) {
        o = options_of(types[t], types[t]);
        expect_ok(sheaf_context_new(r.model, &o, &c));
        run(c);
        for (int value = 0; value < 2; value++) {
            const sheaf_tensor *from = (value ? exact->cache_v : exact->cache_k)[0];
            const sheaf_tensor *held = (value ? c->cache_v : c->cache_k)[0];
            size_t bytes = held->nb[1] * CELLS;
            expect_int(from->ne[0], ROW);
            expect_ok(sheaf_tensor_get(from, rows, 0, sizeof rows));
            expect_ok(sheaf_from_float(types[t], rows, want, ROW * CELLS));
            expect_ok(sheaf_tensor_get(held, got, 0, bytes));
            cr_assert(!memcmp(got, want, bytes), "%s of %s differ", value ? "values" : "keys",
                      sheaf_type_name(types[t]));
        }
        sheaf_context_free(c);
    }
    sheaf_context_free(exact);
    rig_end(&r);
}
