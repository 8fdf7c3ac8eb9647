/* Logits and greedy tokens of random models against an independent implementation (tests/golden), and
 * the same bits whatever the micro-batch. */
#include "tests/models/model_support.h"

/* f32 is exact but for the order of sums; other types round activations as well. */
static double bound_of(const fixture_case *c) { return !strcmp(c->type, "f32") ? 1e-6 : 1e-3; }

/* The prompt with logits of the golden rows, in micro-batches of `ubatch`. */
static void check_logits(const rig *r, const golden *g, double bound, const char *name, const char *devices) {
    uint8_t want[GOLDEN_MAX_TOKENS] = {0};
    for (int i = 0; i < g->n_rows; i++) want[g->position[i]] = 1;
    sheaf_batch b = {.n = g->n_tokens, .token = g->tokens, .want = want};
    expect_ok(sheaf_decode(r->context, &b));
    expect_int(sheaf_n_outputs(r->context), g->n_rows);
    for (int i = 0; i < g->n_rows; i++) {
        double e = golden_nmse(sheaf_logits(r->context, i), g->logits + (size_t)i * (size_t)g->n_vocab, g->n_vocab);
        cr_assert(e <= bound, "%s on %s, position %d: NMSE %.3g, bound %.3g", name, devices, g->position[i], e, bound);
    }
}

/* Feeds the golden tokens, so that one difference does not hide what follows; a best token may differ only
 * where the two best are closer than the arithmetic. */
static void check_greedy(const rig *r, const golden *g, float closeness, const char *name, const char *devices) {
    int32_t last = sheaf_n_outputs(r->context) - 1;
    for (int i = 0; i < g->n_greedy; i++) {
        int32_t best = best_of(sheaf_logits(r->context, i ? 0 : last), g->n_vocab);
        cr_assert(best == g->greedy[i] || g->gaps[i] < closeness, "%s on %s: token %d is %d, expected %d (gap %g)",
                  name, devices, i, best, g->greedy[i], (double)g->gaps[i]);
        sheaf_batch b = {.n = 1, .token = &g->greedy[i]};
        expect_ok(sheaf_decode(r->context, &b));
    }
}

static void check_case(const fixture_case *c, const char *devices, int32_t ubatch) {
    rig r;
    golden g;
    char path[512];
    snprintf(path, sizeof path, GOLDEN_DIR "/logits/%s.txt", c->name);
    cr_assert_eq(golden_read(path, &g), 0, "%s cannot be read", path);
    rig_file(&r, c->name);
    rig_devices(&r, devices);
    sheaf_context_options o = sheaf_context_defaults();
    o.n_ctx = 128;
    o.n_ubatch = ubatch;
    o.n_outputs = 2; /* fewer than wanted: micro-batches end early */
    o.type_k = o.type_v = SHEAF_F32;
    rig_load(&r, &o);
    bool exact = !strcmp(c->type, "f32");
    check_logits(&r, &g, bound_of(c), c->name, devices);
    check_greedy(&r, &g, exact ? 1e-3f : 0.5f, c->name, devices);
    golden_free(&g);
    rig_end(&r);
}

static int check_all(const char *devices, int32_t ubatch) {
    FILE *f = fopen(GOLDEN_DIR "/cases.txt", "r");
    cr_assert_not_null(f);
    fixture_case c;
    int n = 0, more;
    while ((more = fixture_next(f, &c)) == 1) {
        if (!case_is_left_out(&c)) check_case(&c, devices, ubatch);
        n++;
    }
    expect_int(more, 0);
    fclose(f);
    return n;
}

Test(golden, every_case_on_one_device, .timeout = 300) { expect_int(check_all("cpu", 32), count_case_rows()); }

Test(golden, small_micro_batches_give_the_same, .timeout = 300) {
    fixture_case c;
    expect_int(fixture_find(GOLDEN_DIR "/cases.txt", "dense-f32", &c), 0);
    static const int32_t ubatches[] = {1, 7, 31, 32};
    for (int i = 0; i < 4; i++) check_case(&c, "cpu", ubatches[i]);
}
