/* The five programs of docs/tour on random GPT-2 models: what they print is what an independent implementation
 * computed (tests/golden), and the same bits from each of them. */
#include "fixture.h"
#include "golden.h"
#include "tests/support/expect.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const programs[] = {"1_arena", "2_allocator", "3_backend", "4_scheduler", "5_meta"};
enum { PROGRAMS = sizeof programs / sizeof *programs };

/* Runs program i; standard output, freed by the caller. Ends the test unless the exit code is `code`. */
static char *run(int i, const char *arguments, int code) {
    char line[1024];
    snprintf(line, sizeof line, "%s/tour-%s %s 2>/dev/null", TOUR_PROGRAMS, programs[i], arguments);
    FILE *f = popen(line, "r");
    cr_assert_not_null(f);
    enum { MOST = 64 << 10 };
    char *text = calloc(1, MOST);
    size_t n = fread(text, 1, MOST - 1, f);
    int status = pclose(f);
    cr_assert(n < MOST - 1, "%s printed too much", line);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == code, "%s: status %x, expected exit code %d", line, status,
              code);
    return text;
}

static void same_text(const char *got, const char *wanted, int i, const char *what) {
    cr_assert(!strcmp(got, wanted), "%s: %s prints\n%.300s\n%s printed\n%.300s", what, programs[i], got, programs[0],
              wanted);
}

/* Logits after the prompt. */
static void check_logits(const char *text, const golden *g, double bound, const char *name) {
    float *row = calloc((size_t)g->n_vocab, sizeof *row);
    char *end = (char *)text;
    for (int k = 0; k < g->n_vocab; k++) row[k] = strtof(end, &end);
    cr_assert(!strcmp(end, "\n"), "%s: more than %d logits", name, g->n_vocab);
    double e = golden_nmse(row, g->logits + (size_t)(g->n_rows - 1) * (size_t)g->n_vocab, g->n_vocab);
    cr_assert(e <= bound, "%s: NMSE %.3g, bound %.3g", name, e, bound);
    free(row);
}

/* Tokens that follow; a difference counts where the two best are further apart than the arithmetic, and ends it. */
static void check_tokens(const char *text, const golden *g, float closeness, const char *name) {
    const char *at = text;
    for (int k = 0; k < g->n_greedy; k++) {
        int id = atoi(at);
        cr_assert(id == g->greedy[k] || g->gaps[k] < closeness, "%s: token %d is %d, expected %d (gap %g)", name, k, id,
                  g->greedy[k], (double)g->gaps[k]);
        if (id != g->greedy[k]) return;
        at = strchr(at, '\n') + 1;
    }
    cr_assert(!*at, "%s: more than %d tokens", name, g->n_greedy);
}

static void check_case(const char *name) {
    fixture_case c;
    golden g;
    char path[512], model[512], prompt[1024] = "", arguments[2048];
    char *folder = make_folder(), *logits[PROGRAMS], *tokens[PROGRAMS];
    bool exact = strstr(name, "f32") != NULL;
    snprintf(path, sizeof path, GOLDEN_DIR "/logits/%s.txt", name);
    snprintf(model, sizeof model, "%s/model.gguf", folder);
    cr_assert_eq(golden_read(path, &g), 0);
    cr_assert(!fixture_find(GOLDEN_DIR "/cases.txt", name, &c) && !fixture_write(&c, model));
    for (int k = 0; k < g.n_tokens; k++) snprintf(prompt + strlen(prompt), 16, " %d", g.tokens[k]);
    for (int i = 0; i < PROGRAMS; i++) {
        snprintf(arguments, sizeof arguments, "%s 0%s", model, prompt);
        logits[i] = run(i, arguments, 0);
        same_text(logits[i], logits[0], i, name);
        snprintf(arguments, sizeof arguments, "%s %d%s", model, g.n_greedy, prompt);
        tokens[i] = run(i, arguments, 0);
        same_text(tokens[i], tokens[0], i, name);
    }
    check_logits(logits[0], &g, exact ? 1e-6 : 1e-3, name);
    check_tokens(tokens[0], &g, exact ? 1e-3f : 0.5f, name);
    for (int i = 0; i < PROGRAMS; i++) free(logits[i]), free(tokens[i]);
    golden_free(&g);
    remove_folder(folder);
}

Test(tour, every_program_computes_what_the_reference_does, .timeout = 300) { check_case("gpt2-f32"); }

Test(tour, also_with_quantized_weights, .timeout = 300) {
    if (UNDER_TSAN) return;
    check_case("gpt2-q8_0");
    check_case("gpt2-q4_k");
}

/* A model of another family, no file, no such id: a line on stderr and an exit code, from each program. */
Test(tour, what_cannot_be_run_is_refused, .timeout = 300) {
    fixture_case c;
    char llama[512], gpt2[512], arguments[1024];
    char *folder = make_folder();
    snprintf(llama, sizeof llama, "%s/llama.gguf", folder);
    snprintf(gpt2, sizeof gpt2, "%s/gpt2.gguf", folder);
    cr_assert(!fixture_find(GOLDEN_DIR "/cases.txt", "dense-f32", &c) && !fixture_write(&c, llama));
    cr_assert(!fixture_find(GOLDEN_DIR "/cases.txt", "gpt2-f32", &c) && !fixture_write(&c, gpt2));
    for (int i = 0; i < PROGRAMS; i++) {
        const struct {
            const char *model, *rest;
            sheaf_status status;
        } cases[] = {{llama, "4 1", SHEAF_E_NOT_FOUND},
                     {"/nonexistent", "4 1", SHEAF_E_IO},
                     {gpt2, "4 288", SHEAF_E_RANGE},
                     {gpt2, "256 1", SHEAF_E_RANGE},
                     {gpt2, "4", SHEAF_E_ARGUMENT}};
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            snprintf(arguments, sizeof arguments, "%s %s", cases[k].model, cases[k].rest);
            free(run(i, arguments, sheaf_status_exit_code(cases[k].status)));
        }
    }
    remove_folder(folder);
}
