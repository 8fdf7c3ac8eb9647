/* A real model through the command: the same tokens as another runtime's, wherever its two best logits
 * are apart. The files of tests/golden/smollm2 say what that runtime gave and how near the second was. Texts part for
 * good at the first near tie: every place of them is held against the other runtime by tests/models/test_smollm2.c,
 * which feeds that runtime's tokens. */
#include "tests/launch/spawn.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 256 };
static const char model_name[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

typedef struct tale {
    char prompt[512];
    int n_tokens, tokens[MOST], n, ids[MOST];
    double gaps[MOST];
} tale;

static const char *field(const char *text, const char *name) {
    char start[32];
    snprintf(start, sizeof start, "\n%s ", name);
    const char *p = strstr(text, start);
    cr_assert(p != NULL, "the golden file has no line \"%s\"", name);
    return p + strlen(start);
}

static int read_ids(const char *p, int *out) {
    char *end;
    long n = strtol(p, &end, 10);
    cr_assert(n > 0 && n <= MOST, "%ld ids", n);
    for (long i = 0; i < n; i++) out[i] = (int)strtol(end, &end, 10);
    return (int)n;
}

static void read_tale(const char *name, tale *t) {
    char path[512], *end;
    snprintf(path, sizeof path, "%s/smollm2/%s.txt", GOLDEN_DIR, name);
    char *text = read_file(path, NULL);
    const char *p = field(text, "prompt");
    snprintf(t->prompt, sizeof t->prompt, "%.*s", (int)strcspn(p, "\n"), p);
    t->n_tokens = read_ids(field(text, "tokens"), t->tokens);
    t->n = read_ids(field(text, "greedy"), t->ids);
    expect_int(strtol(field(text, "gaps"), &end, 10), t->n);
    for (int i = 0; i < t->n; i++) t->gaps[i] = strtod(end, &end);
    free(text);
}

static bool find_model(char *path, size_t n) {
    const char *folder = getenv("SHEAF_MODELS"), *home = getenv("HOME");
    if (folder && *folder)
        snprintf(path, n, "%s/%s", folder, model_name);
    else
        snprintf(path, n, "%s/.cache/sheaf/models/%s", home ? home : "", model_name);
    return access(path, R_OK) == 0;
}

static void compare(const tale *t, const char *path, const char *devices) {
    outcome o = sheaf("run -m %s --raw -p '%s' -n %d --temp 0 --ignore-eos --json -q -c 256 --devices %s", path,
                      t->prompt, t->n, devices);
    cJSON *j = expect_json(&o);
    const cJSON *prompt = expect_key(&o, j, "prompt_tokens", cJSON_Array),
                *ids = expect_key(&o, j, "tokens", cJSON_Array);
    expect_int(cJSON_GetArraySize(prompt), t->n_tokens);
    for (int i = 0; i < t->n_tokens; i++) expect_int(cJSON_GetArrayItem(prompt, i)->valueint, t->tokens[i]);
    expect_int(cJSON_GetArraySize(ids), t->n);
    for (int i = 0; i < t->n; i++) {
        int id = cJSON_GetArrayItem(ids, i)->valueint;
        if (id == t->ids[i]) continue;
        cr_assert(t->gaps[i] < 0.5, "%s: token %d is %d, expected %d, and the second best was %g away", t->prompt, i,
                  id, t->ids[i], t->gaps[i]);
        break; /* another text from here on */
    }
    cJSON_Delete(j);
    outcome_free(&o);
}

Test(smollm2, greedy_text_is_the_other_runtimes, .timeout = 600) {
    static const char *const names[] = {"tale", "code", "facts"}, *const devices[] = {"cpu", "cpu/2"};
    char path[1024];
    if (!find_model(path, sizeof path)) skip_test("%s is not there (quickstart test --models fetches it)", path);
    for (int i = 0; i < 3; i++) {
        tale t;
        read_tale(names[i], &t);
        for (int d = 0; d < 2; d++) compare(&t, path, devices[d]);
    }
}

Test(smollm2, golden_files_can_be_read, .timeout = 60) {
    static const char *const names[] = {"tale", "code", "facts"};
    for (int i = 0; i < 3; i++) {
        tale t;
        read_tale(names[i], &t);
        cr_assert(t.n >= 32 && t.prompt[0], "%s: %d ids", names[i], t.n);
    }
}
