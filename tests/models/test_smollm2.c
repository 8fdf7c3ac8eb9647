/* A real model, SmolLM2-135M-Instruct Q4_1, against what llama.cpp generated (tests/golden/smollm2). Its file
 * is fetched by tests/models/fetch.sh; without it these tests are skipped.
 *
 * The golden tokens are fed one by one. Where our best token is another one, the two best logits must be
 * close there (0.5), by llama.cpp's own figures: both round activations to 8 bits, each in its way. */
#include "tests/models/model_support.h"

static const char *model_path(void) {
    static char path[1024];
    const char *folder = getenv("SHEAF_MODELS"), *home = getenv("HOME");
    snprintf(path, sizeof path, "%s%s/SmolLM2-135M-Instruct.Q4_1.gguf",
             folder ? folder
             : home ? home
                    : "",
             folder ? "" : "/.cache/sheaf/models");
    return access(path, R_OK) == 0 ? path : NULL;
}

#define NEED_MODEL()                                                                                                   \
    if (!model_path()) skip_test("SmolLM2 is absent; tests/models/fetch.sh fetches it")

static void start(rig *r, const char *devices) {
    *r = (rig){0};
    snprintf(r->path, sizeof r->path, "%s", model_path());
    rig_threads(r, devices, 2);
    sheaf_context_options o = sheaf_context_defaults();
    o.n_ctx = 256;
    rig_load(r, &o);
}

/* Feeds prompt and golden tokens; returns how many best tokens differ and mixes all hashes into *hash. */
static int follow_golden(rig *r, const golden *g, const char *name, uint64_t *hash) {
    int differ = 0;
    sheaf_kv_clear(r->context);
    expect_ok(sheaf_decode(r->context, &(sheaf_batch){.n = g->n_tokens, .token = g->tokens}));
    for (int i = 0; i < g->n_greedy; i++) {
        int32_t best = best_of(sheaf_logits(r->context, 0), sheaf_model_hparams(r->model)->n_vocab);
        *hash = (*hash ^ sheaf_logits_hash(r->context, 0)) * 0x100000001b3u;
        differ += best != g->greedy[i];
        cr_assert(best == g->greedy[i] || g->gaps[i] < 0.5f, "%s: token %d is %d, llama.cpp has %d and a gap of %g",
                  name, i, best, g->greedy[i], (double)g->gaps[i]);
        expect_ok(sheaf_decode(r->context, &(sheaf_batch){.n = 1, .token = &g->greedy[i]}));
    }
    return differ;
}

Test(smollm2, tokens_are_llama_cpps_and_bits_do_not_depend_on_the_devices, .timeout = 600) {
    NEED_MODEL();
    static const char *const lists[] = {"cpu", "cpu/2", "cpu/3", "cpu/5"}, *const names[] = {"code", "facts", "tale"};
    uint64_t hash[4] = {0};
    for (int d = 0; d < 4; d++) {
        rig r;
        start(&r, lists[d]);
        for (int k = 0; k < 3; k++) {
            golden g;
            char path[512];
            snprintf(path, sizeof path, GOLDEN_DIR "/smollm2/%s.txt", names[k]);
            cr_assert_eq(golden_read(path, &g), 0, "%s cannot be read", path);
            int differ = follow_golden(&r, &g, names[k], &hash[d]);
            if (d == 0)
                printf("%s: %d of %d best tokens differ, all where two are close\n", names[k], differ, g.n_greedy);
            cr_assert(differ <= g.n_greedy / 8, "%s: %d of %d tokens differ", names[k], differ, g.n_greedy);
            golden_free(&g);
        }
        rig_unload(&r);
        cr_assert(hash[d] == hash[0], "on %s the logits are others than on one device: %016llx, %016llx", lists[d],
                  (unsigned long long)hash[d], (unsigned long long)hash[0]);
    }
}

Test(smollm2, the_prompts_tokenize_as_llama_cpp_does, .timeout = 60) {
    NEED_MODEL();
    static const char *const names[] = {"code", "facts", "tale"};
    rig r;
    start(&r, "cpu");
    for (int k = 0; k < 3; k++) {
        golden g;
        char path[512];
        snprintf(path, sizeof path, GOLDEN_DIR "/smollm2/%s.txt", names[k]);
        cr_assert_eq(golden_read(path, &g), 0, "%s cannot be read", path);
        sheaf_ids ids = {0};
        expect_ok(sheaf_tokenize(sheaf_model_tokenizer(r.model), g.prompt, strlen(g.prompt), SHEAF_TOKENIZE_ADD_SPECIAL,
                                 &ids));
        expect_int(ids.n, g.n_tokens);
        for (int i = 0; i < g.n_tokens; i++) expect_int(ids.v[i], g.tokens[i]);
        sheaf_ids_free(&ids);
        golden_free(&g);
    }
    rig_unload(&r);
}
