/* Layers with a sliding window keep cells for a window and a micro-batch only: what is computed with them, what they
 * take, and what cannot be done without the past that they gave up. */
#include "backends/cpu/faults.h"
#include "models/model_internal.h"
#include "tests/models/model_support.h"

static const char *const windowed[] = {"gemma2-f32", "gemma3-f32", "gpt-oss-f32", "phi3-f32"};
enum { FAMILIES = sizeof windowed / sizeof *windowed, LONG = 200, UBATCH = 8, PROMPT = 100 };

static sheaf_context_options options_of(bool full) {
    sheaf_context_options o = sheaf_context_defaults();
    o.n_ctx = 256;
    o.n_ubatch = UBATCH;
    o.n_batch = PROMPT;
    o.type_k = o.type_v = SHEAF_F32;
    o.full_window = full;
    return o;
}

static void start(rig *r, const char *name, const char *devices, const sheaf_context_options *o) {
    rig_file(r, name);
    rig_devices(r, devices);
    rig_load(r, o);
}

static int32_t token_at(int i) { return (i * 37 + i * i % 11 + 5) % 280; }

/* Tokens [from, to) of the text at once, or one by one. */
static void feed(sheaf_context *c, int32_t seq, int from, int to, bool at_once) {
    int32_t token[LONG], seqs[LONG];
    for (int i = from; i < to; i++) token[i - from] = token_at(i + 1000 * seq), seqs[i - from] = seq;
    int step = at_once ? to - from : 1;
    for (int i = 0; i < to - from; i += step)
        expect_ok(sheaf_decode(c, &(sheaf_batch){.n = step, .token = token + i, .seq = seqs}));
}

static double apart(const sheaf_context *x, const sheaf_context *y) {
    return golden_nmse(sheaf_logits(x, 0), sheaf_logits(y, 0), sheaf_model_hparams(x->model)->n_vocab);
}

/* Far beyond several windows: the cells in another order, so sums in another order, but nothing more. */
Test(window, a_short_cache_computes_what_a_full_one_does, .timeout = 600) {
    for (int f = 0; f < FAMILIES; f++) {
        rig r;
        sheaf_context *full;
        sheaf_context_options o = options_of(false), all = options_of(true);
        start(&r, windowed[f], "cpu", &o);
        expect_ok(sheaf_context_new(r.model, &all, &full));
        int32_t window = r.model->hp.window;
        cr_assert(window * 5 < LONG && r.context->window_cells.n == window + UBATCH && full->window_cells.n == 256,
                  "%s: window %d, %d cells", windowed[f], window, r.context->window_cells.n);
        for (int from = 0, to = PROMPT; from < LONG; from = to++) { /* many micro-batches, then token by token */
            feed(r.context, 0, from, to, true);
            feed(full, 0, from, to, true);
            double e = apart(r.context, full);
            cr_assert(e < 1e-10, "%s: NMSE %.3g after %d tokens", windowed[f], e, to);
            expect_int(best_of(sheaf_logits(r.context, 0), r.model->hp.n_vocab),
                       best_of(sheaf_logits(full, 0), r.model->hp.n_vocab));
        }
        expect_int(sheaf_kv_used(r.context, 0), LONG);
        sheaf_context_free(full);
        rig_end(&r);
    }
}

Test(window, any_number_of_devices_gives_the_same_bits, .timeout = 600) {
    static const char *const names[] = {"gemma2-q8_0", "gemma3-f32", "gpt-oss-f32", "phi3-f32"};
    static const char *const lists[] = {"cpu", "cpu/2", "cpu/3", "cpu/5"};
    for (int f = 0; f < 4; f++) {
        uint64_t one = 0;
        for (int d = 0; d < 4; d++) {
            rig r;
            sheaf_context_options o = options_of(false);
            start(&r, names[f], lists[d], &o);
            feed(r.context, 0, 0, PROMPT, true);
            feed(r.context, 0, PROMPT, LONG, false);
            uint64_t hash = sheaf_logits_hash(r.context, 0);
            if (d == 0) one = hash;
            cr_assert(hash == one, "%s on %s: %016llx, on one device %016llx", names[f], lists[d],
                      (unsigned long long)hash, (unsigned long long)one);
            rig_end(&r);
        }
    }
}

/* Each layer takes its cells and no more, and what was said before is what is there. */
Test(window, memory_is_that_of_the_windows, .timeout = 600) {
    static const char *const lists[] = {"cpu", "cpu/2", "cpu/3"};
    for (int f = 0; f < FAMILIES; f++)
        for (int d = 0; d < 3; d++) {
            rig r;
            sheaf_context_options o = options_of(false);
            size_t bytes = 0, held = 0;
            start(&r, windowed[f], lists[d], &o);
            for (int32_t il = 0; il < r.model->hp.n_layer; il++) {
                int64_t cells = r.model->windowed[il] ? r.model->hp.window + UBATCH : o.n_ctx;
                expect_int(r.context->cache_k[il]->ne[1], cells);
                expect_int(r.context->cache_v[il]->ne[1], cells);
                bytes += sheaf_nbytes(r.context->cache_k[il]) + sheaf_nbytes(r.context->cache_v[il]);
            }
            for (int i = 0; i < r.n_devices; i++) {
                sheaf_memory_row is, said;
                cr_assert(sheaf_context_memory(r.context, i, &is));
                cr_assert(sheaf_context_memory_estimate(r.context, i, &said));
                expect_int(is.kv_bytes, said.kv_bytes);
                expect_int(is.compute_bytes, said.compute_bytes);
                held += is.kv_bytes;
            }
            /* rounded up to the alignment of buffers, and heads that two devices share are held twice */
            cr_assert(held >= bytes && (r.n_devices > 1 || held < bytes + 4096), "%s on %s: %zu bytes, of tensors %zu",
                      windowed[f], lists[d], held, bytes);
            rig_end(&r);
        }
}

Test(window, sequences_keep_a_window_each, .timeout = 300) {
    rig r;
    sheaf_context *alone[2];
    sheaf_context_options o = options_of(false), all = options_of(true);
    o.n_seq = all.n_seq = 2;
    start(&r, "gemma3-f32", "cpu", &o);
    expect_int(r.context->window_cells.n, 2 * r.model->hp.window + UBATCH);
    for (int s = 0; s < 2; s++) expect_ok(sheaf_context_new(r.model, &all, &alone[s]));
    for (int i = 0; i < 120; i += 20) { /* one waits while the other runs past its window */
        for (int s = 0; s < 2; s++) {
            feed(r.context, s, i, i + 20, i % 40 == 0);
            feed(alone[s], s, i, i + 20, true);
            double e = apart(r.context, alone[s]);
            cr_assert(e < 1e-10, "sequence %d: NMSE %.3g after %d tokens", s, e, i + 20);
        }
    }
    for (int s = 0; s < 2; s++) sheaf_context_free(alone[s]);
    rig_end(&r);
}

/* The recent past is there as long as nobody needed its cells; beyond it, only all of a sequence can go. */
Test(window, a_removal_into_what_was_given_up_is_refused, .timeout = 300) {
    rig r;
    sheaf_context *full;
    sheaf_context_options o = options_of(false), all = options_of(true);
    start(&r, "gemma3-f32", "cpu", &o);
    expect_ok(sheaf_context_new(r.model, &all, &full));
    feed(r.context, 0, 0, 60, true);
    feed(full, 0, 0, 60, true);
    expect_status(sheaf_kv_remove(r.context, 0, 40, -1), SHEAF_E_RANGE);
    expect_error("sequence 0 cannot go on at position 40");
    expect_int(sheaf_kv_used(r.context, 0), 60);
    sheaf_context *both[] = {r.context, full};
    for (int i = 0; i < 2; i++) {
        feed(both[i], 0, 60, 64, false); /* refused, and as before */
        expect_ok(sheaf_kv_remove(both[i], 0, 62, -1));
        feed(both[i], 0, 70, 80, true);
    }
    cr_assert(apart(r.context, full) < 1e-10, "NMSE %.3g", apart(r.context, full));
    expect_ok(sheaf_kv_remove(r.context, 0, 20, 30)); /* in the middle: where it goes on stays the same */
    expect_ok(sheaf_kv_remove(full, 0, 20, 30));
    for (int i = 0; i < 2; i++) feed(both[i], 0, 80, 90, true);
    cr_assert(apart(r.context, full) < 1e-10, "NMSE %.3g", apart(r.context, full));
    for (int i = 0; i < 2; i++) {
        expect_ok(sheaf_kv_remove(both[i], 0, 0, -1));
        feed(both[i], 0, 5, 45, true);
    }
    cr_assert(apart(r.context, full) < 1e-10, "NMSE %.3g", apart(r.context, full));
    expect_ok(sheaf_kv_clear(r.context));
    feed(r.context, 0, 5, 45, true);
    cr_assert(apart(r.context, full) < 1e-10, "NMSE %.3g", apart(r.context, full));
    sheaf_context_free(full);
    rig_end(&r);
}

/* One micro-batch that fails costs nothing; several may have overwritten what the sequence would need. */
Test(window, a_batch_that_fails_leaves_a_sequence_whole_or_says_that_it_is_not, .timeout = 300) {
    rig r;
    sheaf_context_options o = options_of(false);
    start(&r, "gemma3-f32", "cpu", &o);
    int32_t token[40], failed = 0, refused = 0;
    for (int i = 0; i < 40; i++) token[i] = token_at(i);
    feed(r.context, 0, 0, 60, true);
    for (int kernel = 1; kernel < 60; kernel += 7) {
        atomic_store(&cpu_device_faults(r.devices[0])->kernel, kernel);
        sheaf_status s = sheaf_decode(r.context, &(sheaf_batch){.n = UBATCH, .token = token});
        atomic_store(&cpu_device_faults(r.devices[0])->kernel, 0);
        if (!s) break;
        failed++;
        expect_int(sheaf_kv_used(r.context, 0), 60);
        expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = UBATCH, .token = token}));
        uint64_t hash = sheaf_logits_hash(r.context, 0);
        expect_ok(sheaf_kv_clear(r.context));
        feed(r.context, 0, 0, 60, true);
        expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = UBATCH, .token = token}));
        expect_int(sheaf_logits_hash(r.context, 0) == hash, 1);
        expect_ok(sheaf_kv_clear(r.context));
        feed(r.context, 0, 0, 60, true);
    }
    cr_assert_gt(failed, 3, "only %d batches failed", failed);
    for (int kernel = 1; kernel < 2000 && !refused; kernel += 50) {
        atomic_store(&cpu_device_faults(r.devices[0])->kernel, kernel);
        sheaf_status s = sheaf_decode(r.context, &(sheaf_batch){.n = 40, .token = token});
        atomic_store(&cpu_device_faults(r.devices[0])->kernel, 0);
        if (!s) break;
        expect_int(sheaf_kv_used(r.context, 0), 60);
        s = sheaf_decode(r.context, &(sheaf_batch){.n = 1, .token = token});
        if (!s) {
            expect_ok(sheaf_kv_remove(r.context, 0, 60, -1));
            continue;
        }
        refused++;
        expect_int(s, SHEAF_E_RANGE);
        expect_error("hold no longer; remove the whole sequence first");
        expect_int(sheaf_kv_used(r.context, 0), 60);
    }
    expect_int(refused, 1);
    expect_ok(sheaf_kv_remove(r.context, 0, 0, -1));
    feed(r.context, 0, 0, 60, true);
    rig_end(&r);
}

static sheaf_status one_token(void *ctx) {
    int32_t id = 17;
    return sheaf_decode(ctx, &(sheaf_batch){.n = 1, .token = &id});
}

/* Cells that are given up and taken again change no graph. */
Test(window, steady_decode_builds_and_allocates_nothing, .timeout = 300) {
    rig r;
    sheaf_context_options o = options_of(false);
    start(&r, "gemma3-f32", "cpu/2", &o);
    feed(r.context, 0, 0, PROMPT, true);
    for (int i = 0; i < 3; i++) expect_ok(one_token(r.context));
    sheaf_context_stats before = sheaf_context_get_stats(r.context);
    for (int i = 0; i < 60; i++) expect_int(count_allocations(one_token, r.context), 0);
    expect_int(sheaf_context_get_stats(r.context).graphs_built, before.graphs_built);
    rig_end(&r);
}

static sheaf_status open_context(void *ctx) {
    const rig *r = ctx;
    sheaf_context *c;
    sheaf_context_options o = options_of(false);
    sheaf_status s = sheaf_context_new(r->model, &o, &c);
    sheaf_context_free(c);
    return s;
}

Test(window, every_failed_allocation_of_a_context_is_a_clean_status, .timeout = 300) {
    rig r;
    rig_file(&r, "gemma3-f32");
    rig_devices(&r, "cpu/2");
    expect_ok(sheaf_model_load(r.path, &r.options, &r.model));
    int failed = fail_each_allocation(open_context, &r);
    cr_assert(failed > 50, "only %d allocations were failed", failed);
    rig_end(&r);
}

/* --- cells ---------------------------------------------------------------------------------------------- */

enum { WINDOW = 5, BATCH = 3, SEQUENCES = 3, POSITIONS = 4000 };

/* Is every position that the next token of `seq` sees in a cell, once? */
static void check_cells(const kv_cells *k, int32_t seq, int32_t next, int32_t first) {
    int32_t from = next - WINDOW + 1 > first ? next - WINDOW + 1 : first, seen = 0;
    if (k->lost[seq] > from) return;
    for (int32_t i = 0; i < k->n; i++) seen += k->seq[i] == seq && k->pos[i] >= from;
    cr_assert(seen == next - from, "sequence %d at %d: %d of %d positions in cells", seq, next, seen, next - from);
}

/* Micro-batches of random sequences, tails and wholes removed: there is always a cell, and windows stay whole. */
Test(window, there_is_always_a_cell, .timeout = 60) {
    rng g = rng_start("windowed cells");
    kv_cells k;
    int32_t next[SEQUENCES] = {0}, now[SEQUENCES], gone = 0;
    expect_ok(kv_cells_init(&k, SEQUENCES * WINDOW + BATCH, SEQUENCES));
    for (int step = 0; step < POSITIONS; step++) {
        memcpy(now, next, sizeof now);
        for (int i = 0; i < BATCH; i++) {
            int32_t seq = (int32_t)rng_below(&g, SEQUENCES);
            int32_t cell = kv_cells_claim_windowed(&k, seq, now[seq]++, WINDOW, next);
            cr_assert(cell >= 0 && cell < k.n && k.seq[cell] == seq);
        }
        memcpy(next, now, sizeof next);
        for (int32_t seq = 0; seq < SEQUENCES; seq++) {
            cr_assert_leq(k.lost[seq], next[seq] - WINDOW + 1 > 0 ? next[seq] - WINDOW + 1 : 0);
            check_cells(&k, seq, next[seq], 0);
        }
        if (rng_below(&g, 7) == 0) {
            int32_t seq = (int32_t)rng_below(&g, SEQUENCES), tail = (int32_t)rng_below(&g, 4);
            bool whole = tail > next[seq] || k.lost[seq] > next[seq] - tail - WINDOW + 1;
            kv_cells_remove(&k, seq, whole ? 0 : next[seq] - tail, -1);
            next[seq] = whole ? 0 : next[seq] - tail;
            if (whole) k.lost[seq] = 0, gone++;
        }
    }
    cr_assert_gt(gone, 10, "%d", gone);
    kv_cells_free(&k);
}
