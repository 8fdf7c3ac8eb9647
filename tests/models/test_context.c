/* Contexts: what a batch may be, what a failed one leaves, sequences that do not see each other, and a
 * steady state that builds and allocates nothing. */
#include "backends/cpu/faults.h"
#include "meta/meta.h"
#include "models/model_internal.h"
#include "tests/models/model_support.h"

#include <malloc.h>

static void start(rig *r, const char *name, const sheaf_context_options *o) {
    rig_file(r, name);
    rig_devices(r, "cpu");
    rig_load(r, o);
}

static sheaf_context_options small(void) {
    sheaf_context_options o = sheaf_context_defaults();
    o.n_ctx = 64;
    o.n_batch = 32;
    o.n_ubatch = 8;
    o.n_seq = 2;
    return o;
}

/* Decodes n tokens that depend on `salt`, and returns the hash of the last row. */
static uint64_t decode(sheaf_context *c, int n, int salt, int32_t seq) {
    int32_t token[64], seqs[64];
    for (int i = 0; i < n; i++) {
        token[i] = (salt * 31 + i * 7) % 280;
        seqs[i] = seq;
    }
    sheaf_batch b = {.n = n, .token = token, .seq = seqs};
    expect_ok(sheaf_decode(c, &b));
    return sheaf_logits_hash(c, 0);
}

#define expect_hash(got, wanted)                                                                                       \
    do {                                                                                                               \
        uint64_t got_ = (got), wanted_ = (wanted);                                                                     \
        cr_assert(got_ == wanted_, "%s is %016llx, expected %016llx", #got, (unsigned long long)got_,                  \
                  (unsigned long long)wanted_);                                                                        \
    } while (0)

Test(context, impossible_batches_are_refused_and_change_nothing, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "h9k3-f32", &o);
    decode(r.context, 5, 1, 0);
    int32_t ids[40] = {0}, far = 288, seq = 2, pos = 4, ahead = 9;
    const struct {
        sheaf_batch b;
        sheaf_status status;
        const char *says;
    } cases[] = {
        {{.n = 0, .token = ids}, SHEAF_E_ARGUMENT, "a batch of 0 tokens"},
        {{.n = -1, .token = ids}, SHEAF_E_ARGUMENT, "a batch of -1 tokens"},
        {{.n = 33, .token = ids}, SHEAF_E_ARGUMENT, "a batch of 33 tokens, expected 1 to 32"},
        {{.n = 1, .token = NULL}, SHEAF_E_ARGUMENT, "a batch"},
        {{.n = 1, .token = &far}, SHEAF_E_RANGE, "id 288 is outside the vocabulary of 288"},
        {{.n = 1, .token = ids, .seq = &seq}, SHEAF_E_RANGE, "sequence 2 of 2"},
        {{.n = 1, .token = ids, .pos = &pos}, SHEAF_E_ARGUMENT, "position 4 of sequence 0, expected at least 5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_status(sheaf_decode(r.context, &cases[i].b), cases[i].status);
        expect_error(cases[i].says);
        expect_int(sheaf_kv_used(r.context, 0), 5);
    }
    sheaf_batch skip = {.n = 1, .token = ids, .pos = &ahead}; /* a gap in positions is allowed */
    expect_ok(sheaf_decode(r.context, &skip));
    expect_int(sheaf_kv_used(r.context, 0), 6);
    rig_end(&r);
}

Test(context, a_prompt_longer_than_the_context_says_so, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "h9k3-f32", &o);
    int32_t ids[70] = {0};
    expect_status(sheaf_decode(r.context, &(sheaf_batch){.n = 70, .token = ids}), SHEAF_E_RANGE);
    expect_error("70 tokens do not fit the context: 64 of 64 cells are free");
    decode(r.context, 32, 1, 0);
    decode(r.context, 30, 2, 0);
    expect_status(sheaf_decode(r.context, &(sheaf_batch){.n = 3, .token = ids}), SHEAF_E_RANGE);
    expect_error("3 tokens do not fit the context: 2 of 64 cells are free");
    expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 2, .token = ids}));
    expect_int(sheaf_kv_used(r.context, 0), 64);
    rig_end(&r);
}

Test(context, learned_positions_end_where_the_training_did, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "gpt2-f32", &o);
    static const int32_t id = 5, last = 255, beyond = 256;
    expect_status(sheaf_decode(r.context, &(sheaf_batch){.n = 1, .token = &id, .pos = &beyond}), SHEAF_E_RANGE);
    expect_error("position 256, the model has 256");
    expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 1, .token = &id, .pos = &last}));
    rig_end(&r);
}

Test(context, sequences_do_not_see_each_other, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "h9k3-f32", &o);
    uint64_t alone = decode(r.context, 10, 3, 0);
    sheaf_kv_clear(r.context);
    decode(r.context, 7, 9, 1);
    uint64_t beside = decode(r.context, 10, 3, 0);
    /* Sequence 0 lies in other cells now, and masked cells lie between: the same numbers all the same. */
    expect_int(sheaf_kv_used(r.context, 1), 7);
    cr_assert(alone == beside, "alone %016llx, beside another sequence %016llx", (unsigned long long)alone,
              (unsigned long long)beside);
    rig_end(&r);
}

Test(context, removed_positions_are_forgotten, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "h9k3-f32", &o);
    decode(r.context, 10, 1, 0);
    uint64_t once = decode(r.context, 6, 2, 0);
    expect_ok(sheaf_kv_remove(r.context, 0, 10, -1));
    expect_int(sheaf_kv_used(r.context, 0), 10);
    decode(r.context, 4, 5, 0);
    expect_ok(sheaf_kv_remove(r.context, 0, 10, 14));
    expect_hash(decode(r.context, 6, 2, 0), once);
    expect_status(sheaf_kv_remove(r.context, 5, 0, -1), SHEAF_E_RANGE);
    rig_end(&r);
}

Test(context, wanted_rows_come_in_batch_order, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "h9k3-f32", &o);
    int32_t ids[20];
    uint8_t want[20] = {0};
    uint64_t hash[20];
    for (int i = 0; i < 20; i++) ids[i] = 100 + i;
    for (int i = 0; i < 20; i++) {
        expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 1, .token = &ids[i]}));
        hash[i] = sheaf_logits_hash(r.context, 0);
    }
    sheaf_kv_clear(r.context);
    want[0] = want[1] = want[9] = want[19] = 1; /* more than n_outputs = 1 allows in one micro-batch */
    expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 20, .token = ids, .want = want}));
    expect_int(sheaf_n_outputs(r.context), 4);
    static const int places[] = {0, 1, 9, 19};
    int same = 0;
    for (int i = 0; i < 4; i++) same += sheaf_logits_hash(r.context, i) == hash[places[i]];
    /* One token or many may run through different kernels; the rows must still be the right ones. */
    for (int i = 0; i < 4; i++) {
        cr_assert_not_null(sheaf_logits(r.context, i));
        for (int k = 0; k < 4; k++)
            if (k != i) cr_assert(sheaf_logits_hash(r.context, i) != hash[places[k]], "row %d is row %d", i, k);
    }
    cr_assert_null(sheaf_logits(r.context, 4));
    cr_assert_null(sheaf_logits(r.context, -1));
    printf("%d of 4 rows have the bits of one-token runs\n", same);
    rig_end(&r);
}

Test(context, a_batch_that_wants_nothing_gives_nothing, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "h9k3-f32", &o);
    int32_t ids[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    uint8_t none[12] = {0};
    expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 12, .token = ids}));
    uint64_t whole = sheaf_logits_hash(r.context, 0);
    sheaf_kv_clear(r.context);
    expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 8, .token = ids, .want = none}));
    expect_int(sheaf_n_outputs(r.context), 0);
    expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 4, .token = ids + 8}));
    expect_hash(sheaf_logits_hash(r.context, 0), whole);
    rig_end(&r);
}

/* M3: a batch that fails in the middle leaves the cells as they were, of every sequence that it had tokens of. */
Test(context, a_batch_that_fails_gives_its_cells_back, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "h9k3-f32", &o);
    int32_t token[20], seq[20];
    for (int i = 0; i < 20; i++) token[i] = 50 + i, seq[i] = i % 3 == 0;
    sheaf_batch b = {.n = 20, .token = token, .seq = seq}; /* three micro-batches */
    decode(r.context, 5, 1, 0);
    decode(r.context, 4, 2, 1);
    expect_ok(sheaf_decode(r.context, &b));
    uint64_t want = sheaf_logits_hash(r.context, 0);
    int failed = 0;
    for (int kernel = 1; kernel < 400; kernel += 37) {
        expect_ok(sheaf_kv_remove(r.context, 0, 5, -1));
        expect_ok(sheaf_kv_remove(r.context, 1, 4, -1));
        atomic_store(&cpu_device_faults(r.devices[0])->kernel, kernel);
        sheaf_status s = sheaf_decode(r.context, &b);
        atomic_store(&cpu_device_faults(r.devices[0])->kernel, 0);
        if (!s) break;
        failed++;
        expect_error("injected fault");
        expect_int(sheaf_n_outputs(r.context), 0);
        expect_int(sheaf_kv_used(r.context, 0), 5);
        expect_int(sheaf_kv_used(r.context, 1), 4);
        expect_ok(sheaf_decode(r.context, &b));
        expect_hash(sheaf_logits_hash(r.context, 0), want);
    }
    cr_assert_gt(failed, 2, "only %d batches failed", failed);
    rig_end(&r);
}

/* One token runs otherwise than many: the backend wants some memory for longer, and a plan for many has it not. */
Test(context, a_plan_is_not_used_for_a_graph_that_lives_longer, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    o.n_outputs = 0; /* all: one token's graph is then wired as that of many */
    start(&r, "gpt2-f32", &o);
    int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint8_t all[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    sheaf_sched *sched = sheaf_context_sched(r.context);
    for (int i = 0; i < 3; i++) {
        expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 8, .token = ids, .want = all}));
        uint64_t before = sheaf_sched_get_stats(sched).reallocs;
        expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 1, .token = ids, .want = all}));
        expect_int(sheaf_sched_get_stats(sched).reallocs, before + 1);
        expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 1, .token = ids, .want = all}));
        expect_int(sheaf_sched_get_stats(sched).reallocs, before + 1);
    }
    expect_int(sheaf_sched_get_stats(sched).unexplained_reallocs, 0);
    rig_end(&r);
}

static sheaf_status one_token(void *ctx) {
    int32_t id = 17;
    return sheaf_decode(ctx, &(sheaf_batch){.n = 1, .token = &id});
}

Test(context, steady_decode_builds_and_allocates_nothing, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "h9k3-q8_0", &o);
    decode(r.context, 8, 1, 0);
    for (int i = 0; i < 3; i++) expect_ok(one_token(r.context));
    sheaf_context_stats before = sheaf_context_get_stats(r.context);
    for (int i = 0; i < 20; i++) {
        int n = count_allocations(one_token, r.context);
        cr_assert(n == 0, "token %d made %d allocations", i, n);
    }
    sheaf_context_stats after = sheaf_context_get_stats(r.context);
    expect_int(after.graphs_built, before.graphs_built);
    expect_int(after.graphs_reused, before.graphs_reused + 20);
    expect_int(sheaf_sched_get_stats(sheaf_context_sched(r.context)).unexplained_reallocs, 0);
    rig_end(&r);
}

/* The plans of the meta device that the context's graph runs on. */
static sheaf_plan_cache_stats plan_stats(sheaf_context *c) {
    sheaf_backend *b;
    for (int i = 0; sheaf_sched_prepared(sheaf_context_sched(c), i, &b); i++) {
        if (sheaf_meta_is(b->device)) return sheaf_meta_cache_stats(b);
    }
    return (sheaf_plan_cache_stats){0};
}

Test(context, steady_decode_on_two_devices_compiles_no_plan, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    rig_file(&r, "h9k3-q8_0");
    rig_devices(&r, "cpu/2");
    rig_load(&r, &o);
    decode(r.context, 8, 1, 0);
    expect_ok(one_token(r.context));
    sheaf_plan_cache_stats before = plan_stats(r.context), after;
    cr_assert_gt(before.compiles, 0, "%llu", (unsigned long long)before.compiles);
    for (int i = 0; i < 20; i++) expect_ok(one_token(r.context)); /* all below one border of the cache's length */
    after = plan_stats(r.context);
    expect_int(after.compiles, before.compiles);
    expect_int(after.hits, before.hits); /* the bound plan runs again without being looked for */
    rig_end(&r);
}

Test(context, a_kv_type_that_cuts_heads_is_refused_by_name, .timeout = 60) {
    rig r;
    sheaf_context_options o = small(), odd = small();
    start(&r, "h28k4-f32", &o);
    sheaf_context *c;
    odd.type_v = SHEAF_Q8_0; /* heads of 8 */
    expect_status(sheaf_context_new(r.model, &odd, &c), SHEAF_E_UNSUPPORTED);
    expect_error("type q8_0 for values: heads of 8 are no whole number of blocks");
    cr_assert_null(c);
    rig_end(&r);
}

Test(context, two_contexts_of_one_model_do_not_disturb_each_other, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "h9k3-f32", &o);
    sheaf_context *other;
    expect_ok(sheaf_context_new(r.model, &o, &other));
    uint64_t first = decode(r.context, 9, 1, 0);
    decode(other, 5, 6, 0);
    expect_hash(decode(other, 4, 7, 0),
                (sheaf_kv_clear(r.context), decode(r.context, 5, 6, 0), decode(r.context, 4, 7, 0)));
    sheaf_kv_clear(other);
    expect_hash(decode(other, 9, 1, 0), first);
    sheaf_context_free(other);
    rig_end(&r);
}

Test(context, impossible_options_are_refused, .timeout = 300) {
    rig r;
    sheaf_context_options o = small(), bad[4] = {small(), small(), small(), small()};
    start(&r, "h9k3-f32", &o);
    bad[0].n_ctx = -1;
    bad[1].n_ubatch = -5;
    bad[2].n_seq = -1;
    bad[3].n_outputs = -1;
    for (int i = 0; i < 4; i++) {
        sheaf_context *c;
        expect_status(sheaf_context_new(r.model, &bad[i], &c), SHEAF_E_ARGUMENT);
        cr_assert_null(c);
    }
    o.type_k = (sheaf_type)4;
    sheaf_context *c;
    expect_status(sheaf_context_new(r.model, &o, &c), SHEAF_E_UNSUPPORTED);
    rig_end(&r);
}

Test(context, memory_is_what_was_computed_beforehand, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    rig_file(&r, "h9k3-q8_0");
    rig_devices(&r, "cpu");
    r.options.no_mmap = true;
    rig_load(&r, &o);
    sheaf_memory_row is, said;
    expect_int(sheaf_context_memory(r.context, 0, &is), true);
    expect_int(sheaf_context_memory_estimate(r.context, 0, &said), true);
    expect_text(is.device, "cpu");
    expect_int(said.weight_bytes, is.weight_bytes);
    expect_int(said.kv_bytes, is.kv_bytes);
    expect_int(said.compute_bytes, is.compute_bytes);
    expect_int(sheaf_context_memory(r.context, 1, &is), false);
    rig_end(&r);
}

static bool note_largest(void *ctx, size_t size) {
    size_t *largest = ctx;
    if (size > *largest) *largest = size;
    return true;
}

Test(context, a_cache_larger_than_memory_is_refused_before_it_is_touched, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "dense-f32", &o);
    o.n_ctx = INT32_MAX; /* 2 layers x 2 x 128 x 2 bytes a token: 2 TB */
    sheaf_context *c;
    size_t largest = 0;
    sheaf_alloc_hook(note_largest, &largest);
    expect_status(sheaf_context_new(r.model, &o, &c), SHEAF_E_NO_MEMORY);
    sheaf_alloc_hook(NULL, NULL);
    cr_assert(largest < 64 << 20, "%zu bytes were allocated at once", largest); /* nor what is kept of each cell */
    expect_error("KV cache of 2147483647 tokens on cpu");
    expect_error("MiB needed");
    cr_assert_null(c);
    rig_end(&r);
}

/* Cells that nobody wrote are masked, but 0 x NaN is NaN: here fresh memory is full of NaNs. */
Test(context, memory_that_is_not_zero_changes_nothing, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    o.n_ubatch = 32;
    start(&r, "h9k3-f32", &o);
    uint64_t want = decode(r.context, 20, 3, 0);
    sheaf_context_free(r.context);
    mallopt(M_PERTURB, 0x81); /* bytes of 0x7e: NaN in f16 */
    expect_ok(sheaf_context_new(r.model, &o, &r.context));
    mallopt(M_PERTURB, 0);
    expect_hash(decode(r.context, 20, 3, 0), want);
    uint8_t cell[16], zero[16] = {0};
    expect_ok(
        sheaf_tensor_get(r.context->cache_v[0], cell, sheaf_nbytes(r.context->cache_v[0]) - sizeof cell, sizeof cell));
    cr_assert_eq(memcmp(cell, zero, sizeof cell), 0, "the last cell begins with %02x", cell[0]);
    rig_end(&r);
}

/* The row that a graph computes for nobody must be one of its own, whatever lies in the input's place. */
Test(context, a_batch_that_wants_nothing_computes_a_row_of_its_own, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "h9k3-f32", &o);
    int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8}, row = 1 << 30;
    uint8_t none[8] = {0};
    sheaf_batch b = {.n = 8, .token = ids, .want = none};
    expect_ok(sheaf_decode(r.context, &b));
    expect_ok(sheaf_tensor_set(r.context->in.outputs, &row, 0, sizeof row));
    expect_ok(sheaf_decode(r.context, &b));
    expect_ok(sheaf_tensor_get(r.context->in.outputs, &row, 0, sizeof row));
    expect_int(row, 0);
    rig_end(&r);
}

Test(context, the_cache_is_read_no_further_than_its_last_cell, .timeout = 60) {
    kv_cells k;
    expect_ok(kv_cells_init(&k, 8, 2));
    for (int i = 0; i < 5; i++) expect_int(kv_cells_claim(&k, i > 2, i), i);
    kv_cells_release(&k, 4);
    kv_cells_release(&k, 3);
    kv_cells_settle(&k, 1);
    expect_int(k.high, 3);
    kv_cells_release(&k, 1);
    kv_cells_settle(&k, 0);
    expect_int(k.high, 3);
    expect_int(k.next[0], 3);
    expect_int(kv_cells_claim(&k, 1, 0), 1); /* the lowest hole first */
    expect_int(kv_cells_claim(&k, 1, 1), 3);
    kv_cells_free(&k);
}

/* --- what a token costs ------------------------------------------------------------------------------------ */

enum { NAP_MS = 200 };
static sheaf_status nap_in_queue(void *ctx, int i, int n, sheaf_queue *q) {
    (void)ctx, (void)n, (void)q;
    if (i == 0) usleep(NAP_MS * 1000);
    return SHEAF_OK;
}
static bool wants_last(void *ctx, const sheaf_tensor *t) { return !strcmp(t->name, ctx); }
static sheaf_status see_napping(void *ctx, const sheaf_tensor *t) { return (void)t, nap_in_queue(ctx, 0, 1, NULL); }

/* Time of the device is what the host waits for; the rest of a decode is overhead. A nap on either side shows which. */
Test(context, overhead_is_the_hosts_time_and_not_the_devices, .timeout = 300) {
    rig r;
    sheaf_context_options o = small();
    start(&r, "h9k3-f32", &o);
    sheaf_backend *b;
    decode(r.context, 3, 1, 0);
    expect_ok(one_token(r.context));
    expect_int(sheaf_sched_prepared(sheaf_context_sched(r.context), 0, &b) != NULL, 1);
    for (int host = 0; host < 2; host++) {
        if (host) {
            sheaf_sched_set_eval(sheaf_context_sched(r.context), wants_last, see_napping, "result_output");
            decode(r.context, 2, 1, 0); /* an observer counts from the next graph on */
        } else {
            expect_ok(sheaf_queue_call(b->queue, nap_in_queue, NULL));
        }
        sheaf_context_stats x = sheaf_context_get_stats(r.context), y;
        expect_ok(one_token(r.context));
        y = sheaf_context_get_stats(r.context);
        double device = (double)(y.device_ns - x.device_ns) * 1e-6,
               rest = (double)(y.overhead_ns - x.overhead_ns) * 1e-6;
        double napped = host ? rest : device, awake = host ? device : rest;
        cr_assert(napped > NAP_MS * 0.9 && awake < NAP_MS * 0.75, "a nap of the %s: device %.1f ms, overhead %.1f ms",
                  host ? "host" : "device", device, rest);
    }
    rig_end(&r);
}
