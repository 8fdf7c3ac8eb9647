/* What a decode brings out: the best logits of a row, found where each part of it lies, are those of the whole row on
 * any number of devices, a sampler draws the same tokens from either, and what was not brought out can be fetched. */
#include "models/model_internal.h"
#include "tests/models/model_support.h"

enum { K = 40, STEPS = 24 };

static void start(rig *r, const char *devices, const float *shares, int n_shares, int32_t n_best) {
    rig_devices(r, devices);
    r->options.tensor_split = shares;
    r->options.n_tensor_split = n_shares;
    sheaf_context_options o = sheaf_context_defaults();
    o.n_ctx = 128;
    o.n_ubatch = 8;
    o.n_outputs = 4;
    o.n_best = n_best;
    rig_load(r, &o);
}

/* Where the row's logits say so: a strict order. */
static bool before(const float *row, int32_t a, int32_t b) { return row[a] > row[b] || (row[a] == row[b] && a < b); }

static void expect_best_of_row(const sheaf_best *best, int32_t n, const float *row, int32_t n_ids) {
    for (int32_t i = 0; i < n; i++) {
        cr_assert(best[i].id >= 0 && best[i].id < n_ids, "place %d: id %d", i, best[i].id);
        cr_assert(best[i].logit == row[best[i].id], "place %d, id %d: %a, the row has %a", i, best[i].id,
                  (double)best[i].logit, (double)row[best[i].id]);
        int32_t earlier = 0;
        for (int32_t id = 0; id < n_ids; id++) earlier += before(row, id, best[i].id);
        cr_assert(earlier == i, "place %d: %d others come before id %d", i, earlier, best[i].id);
    }
}

static const struct {
    const char *devices;
    float share[5];
    int n;
} layouts[] = {{"cpu", {0}, 0},   {"cpu/2", {0}, 0},       {"cpu/3", {0}, 0},
               {"cpu/5", {0}, 0}, {"cpu/3", {1, 0, 1}, 3}, {"cpu/2", {9, 1}, 2}};

enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

Test(outputs, the_best_of_the_parts_are_the_best_of_the_row, .timeout = 300) {
    static const char *const models[] = {"h9k3-f32", "gemma2-f32", "dense-tied-q8_0"};
    static const int32_t ids[] = {5, 17, 250, 3, 99, 140, 200, 64, 31, 8, 77};
    static const uint8_t want[] = {0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        rig r;
        uint64_t hash = 0;
        rig_file(&r, models[m]);
        for (int i = 0; i < N_LAYOUTS; i++) {
            start(&r, layouts[i].devices, layouts[i].n ? layouts[i].share : NULL, layouts[i].n, K);
            int32_t n, n_ids = sheaf_model_hparams(r.model)->n_tokens;
            sheaf_batch b = {.n = 11, .token = ids, .want = want, .best = true};
            expect_ok(sheaf_decode(r.context, &b));
            expect_int(sheaf_n_outputs(r.context), 3);
            for (int32_t row = 0; row < 3; row++) {
                cr_assert_null(sheaf_logits(r.context, row), "row %d was brought out whole", row);
                cr_assert_not_null(sheaf_logits_best(r.context, row, &n));
                expect_int(n, K);
            }
            cr_assert_null(sheaf_logits_best(r.context, 3, &n));
            expect_int(n, 0);
            expect_ok(sheaf_logits_fetch(r.context)); /* rows 1 and 2 ran last */
            cr_assert_null(sheaf_logits(r.context, 0));
            for (int32_t row = 1; row < 3; row++)
                expect_best_of_row(sheaf_logits_best(r.context, row, &n), K, sheaf_logits(r.context, row), n_ids);
            if (i == 0) hash = sheaf_logits_hash(r.context, 2);
            cr_assert(sheaf_logits_hash(r.context, 2) == hash, "%s on %s: other logits", models[m], layouts[i].devices);
            rig_unload(&r);
        }
        remove_folder(r.folder);
    }
}

/* Rows of the embedding past the vocabulary are padding: they have logits, and are never among the best. More are not
 * asked for than there are ids. */
Test(outputs, padding_is_never_among_the_best, .timeout = 120) {
    enum { IDS = 150 };
    rig r;
    int32_t id = 7, n;
    rig_file(&r, "h9k3-f32");
    for (int i = 0; i < N_LAYOUTS; i++) {
        rig_devices(&r, layouts[i].devices);
        r.options.tensor_split = layouts[i].n ? layouts[i].share : NULL;
        r.options.n_tensor_split = layouts[i].n;
        expect_ok(sheaf_model_load(r.path, &r.options, &r.model));
        r.model->hp.n_tokens = IDS;
        sheaf_context_options o = sheaf_context_defaults();
        o.n_ctx = 64;
        o.n_best = 200;
        expect_ok(sheaf_context_new(r.model, &o, &r.context));
        expect_int(sheaf_n_best(r.context), IDS);
        expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 1, .token = &id, .best = true}));
        const sheaf_best *best = sheaf_logits_best(r.context, 0, &n);
        expect_int(n, IDS);
        expect_ok(sheaf_logits_fetch(r.context));
        for (int32_t k = 0; k < n; k++) cr_assert(best[k].id < IDS, "place %d: padding %d", k, best[k].id);
        const float *row = sheaf_logits(r.context, 0);
        for (int32_t k = 0; k + 1 < n; k++)
            cr_assert(before(row, best[k].id, best[k + 1].id), "ids %d and %d", best[k].id, best[k + 1].id);
        rig_unload(&r);
    }
    remove_folder(r.folder);
}

/* A whole row says what the best of it said, and costs more to read. */
Test(outputs, only_the_best_are_read, .timeout = 120) {
    rig r;
    int32_t id = 7, n;
    rig_file(&r, "h9k3-f32");
    for (int i = 0; i < N_LAYOUTS; i++) {
        start(&r, layouts[i].devices, layouts[i].n ? layouts[i].share : NULL, layouts[i].n, 8);
        int32_t places = r.context->out.places, holders = layouts[i].n == 3 ? 2 : r.n_devices;
        expect_int(places, holders);
        expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 1, .token = &id, .best = true}));
        expect_int(sheaf_context_get_stats(r.context).logits_bytes, (uint64_t)places * 8 * sizeof(int64_t));
        sheaf_best best[8];
        memcpy(best, sheaf_logits_best(r.context, 0, &n), sizeof best);
        expect_int(n, 8);
        expect_ok(sheaf_kv_clear(r.context));
        expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 1, .token = &id}));
        cr_assert_null(sheaf_logits_best(r.context, 0, &n));
        expect_best_of_row(best, 8, sheaf_logits(r.context, 0), 280);
        rig_unload(&r);
    }
    remove_folder(r.folder);
}

Test(outputs, what_cannot_be_brought_out_is_refused, .timeout = 120) {
    rig r;
    int32_t ids[10] = {1, 2, 3};
    uint8_t want[10] = {1};
    rig_file(&r, "h9k3-f32");
    start(&r, "cpu/2", NULL, 0, 0);
    expect_status(sheaf_decode(r.context, &(sheaf_batch){.n = 1, .token = ids, .best = true}), SHEAF_E_ARGUMENT);
    rig_unload(&r);
    start(&r, "cpu/2", NULL, 0, 3);
    expect_status(sheaf_logits_fetch(r.context), SHEAF_E_RANGE);
    expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 10, .token = ids, .want = want, .best = true}));
    expect_status(sheaf_logits_fetch(r.context), SHEAF_E_RANGE); /* the last micro-batch has no wanted row */
    rig_unload(&r);
    sheaf_context_options o = sheaf_context_defaults();
    o.n_best = SHEAF_MAX_BEST + 1;
    sheaf_context *c;
    rig_devices(&r, "cpu");
    expect_ok(sheaf_model_load(r.path, &r.options, &r.model));
    expect_status(sheaf_context_new(r.model, &o, &c), SHEAF_E_ARGUMENT);
    rig_end(&r);
}

/* Text is the same whether the sampler sees rows or only the best of them. */
Test(outputs, samplers_draw_the_same_tokens_from_either, .timeout = 300) {
    sheaf_sampler_options o[4];
    for (int i = 0; i < 4; i++) o[i] = sheaf_sampler_defaults(), o[i].seed = 5 + (uint64_t)i;
    o[1].temp = 0;
    o[2].temp = 1.5f, o[2].repeat_penalty = 1.3f, o[2].repeat_last_n = 16;
    o[3].top_k = 12, o[3].typical = 0.9f, o[3].frequency_penalty = 0.2f, o[3].repeat_last_n = 32;
    rig r;
    rig_file(&r, "h9k3-q8_0");
    for (int k = 0; k < 4; k++) {
        int32_t whole[STEPS], id, n;
        for (int i = 0; i < N_LAYOUTS; i++) {
            int32_t needs = sheaf_sampler_needs(&o[k], 280);
            cr_assert_gt(needs, 0);
            start(&r, layouts[i].devices, layouts[i].n ? layouts[i].share : NULL, layouts[i].n, i ? needs : 0);
            sheaf_sampler *s;
            expect_ok(sheaf_sampler_new(&o[k], sheaf_model_hparams(r.model)->n_tokens, &s));
            id = 40;
            for (int step = 0; step < STEPS; step++) {
                expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 1, .token = &id, .best = i > 0}));
                const sheaf_best *best = sheaf_logits_best(r.context, 0, &n);
                expect_ok(i ? sheaf_sample_best(s, best, n, &id) : sheaf_sample(s, sheaf_logits(r.context, 0), &id));
                if (i == 0) whole[step] = id;
                cr_assert(id == whole[step], "sampler %d on %s, step %d: token %d, of whole rows %d", k,
                          layouts[i].devices, step, id, whole[step]);
            }
            sheaf_sampler_free(s);
            rig_unload(&r);
        }
    }
    remove_folder(r.folder);
}

/* Ties go to the lower id and NaN counts last, over the borders of parts too: here every logit is the same. */
Test(outputs, ties_over_the_borders_of_parts_go_to_the_lower_id, .timeout = 120) {
    static const uint8_t bytes[] = {0x00, 0xff}; /* weights of 0, and of NaN */
    rig r;
    int32_t id = 150, n; /* whose row stays a number where the embedding is the same matrix */
    rig_file(&r, "h9k3-f32");
    for (int i = 1; i < N_LAYOUTS; i++)
        for (int k = 0; k < 2; k++) {
            start(&r, layouts[i].devices, layouts[i].n ? layouts[i].share : NULL, layouts[i].n, 200);
            const sheaf_model *m = r.model;
            sheaf_tensor *w = m->weight[m->hp.tied ? m->global[W_TOKEN_EMBD] : m->global[W_OUTPUT]];
            size_t size = sheaf_nbytes(w), row = w->nb[1];
            uint8_t *filled = malloc(size);
            memset(filled, bytes[k], size);
            memset(filled + 150 * row, 0, row); /* one number among the NaNs */
            expect_ok(sheaf_tensor_set(w, filled, 0, size));
            free(filled);
            expect_ok(sheaf_decode(r.context, &(sheaf_batch){.n = 1, .token = &id, .best = true}));
            const sheaf_best *best = sheaf_logits_best(r.context, 0, &n);
            expect_int(n, 200);
            for (int32_t j = 0; j < n; j++) {
                int32_t wanted = k == 0 ? j : j == 0 ? 150 : j <= 150 ? j - 1 : j;
                cr_assert(best[j].id == wanted, "%s, place %d: id %d, expected %d", layouts[i].devices, j, best[j].id,
                          wanted);
            }
            rig_unload(&r);
        }
    remove_folder(r.folder);
}
