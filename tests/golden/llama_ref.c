/* Asks llama.cpp's library what it computes, token by token, for golden vectors. Not part of sheaf:
 * it is compiled against a llama.cpp that make_smollm2.sh is pointed at.
 *
 *     llama_ref MODEL greedy N PROMPT     N tokens, the best one each time, from a raw prompt
 *     llama_ref MODEL logits ID...        logits after the last four of these tokens
 *
 * Output is the text form of README.md. Greedy runs as llama.cpp does by default (f16 cache);
 * logits are for comparing with f32 references, so the cache is f32 and attention unfused.
 * llama.cpp's own programs print text, which does not say which tokens made it, and no gaps
 * between the two best logits, which decide whether a difference means anything.
 */
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 4096, KEPT = 4 };

typedef struct session {
    struct llama_model *model;
    struct llama_context *ctx;
    const struct llama_vocab *vocab;
} session;

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int die(const char *what) {
    fprintf(stderr, "llama_ref: %s\n", what);
    exit(3);
}

static session open_session(const char *path, int exact) {
    session s;
    struct llama_model_params mp = llama_model_default_params();
    struct llama_context_params cp = llama_context_default_params();
    s.model = llama_model_load_from_file(path, mp);
    if (!s.model) die("loading the model failed");
    s.vocab = llama_model_get_vocab(s.model);
    cp.n_ctx = 1024;
    cp.n_threads = cp.n_threads_batch = 2;
    if (exact) {
        cp.type_k = cp.type_v = GGML_TYPE_F32;
        cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    }
    s.ctx = llama_init_from_model(s.model, cp);
    if (!s.ctx) die("making a context failed");
    return s;
}

static void close_session(session *s) {
    llama_free(s->ctx);
    llama_model_free(s->model);
}

/* Runs n tokens after those already in the cache; logits of the last `kept` can be read. */
static void decode(session *s, const llama_token *ids, int n, int first, int kept) {
    struct llama_batch b = llama_batch_init(n, 0, 1);
    b.n_tokens = n;
    for (int i = 0; i < n; i++) {
        b.token[i] = ids[i];
        b.pos[i] = first + i;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = i >= n - kept;
    }
    if (llama_decode(s->ctx, b)) die("decoding failed");
    llama_batch_free(b);
}

/* The best id; *gap is how far the second best is below it. */
static llama_token best(const float *logits, int n, float *gap) {
    int a = 0, b = 1;
    if (logits[1] > logits[0]) a = 1, b = 0;
    for (int i = 2; i < n; i++) {
        if (logits[i] > logits[a])
            b = a, a = i;
        else if (logits[i] > logits[b])
            b = i;
    }
    *gap = logits[a] - logits[b];
    return a;
}

static void print_ids(const char *key, const llama_token *ids, int n) {
    printf("%s %d", key, n);
    for (int i = 0; i < n; i++) printf(" %d", ids[i]);
    printf("\n");
}

static void greedy(session *s, int wanted, const char *prompt) {
    static llama_token ids[MAX_TOKENS];
    static float gaps[MAX_TOKENS];
    int n_vocab = llama_vocab_n_tokens(s->vocab), made = 0;
    int n = llama_tokenize(s->vocab, prompt, (int)strlen(prompt), ids, MAX_TOKENS - wanted, true, true);
    if (n <= 0) die("tokenizing the prompt failed");
    decode(s, ids, n, 0, 1);
    while (made < wanted) {
        llama_token id = best(llama_get_logits_ith(s->ctx, -1), n_vocab, &gaps[made]);
        if (llama_vocab_is_eog(s->vocab, id)) break;
        ids[n + made++] = id;
        decode(s, &id, 1, n + made - 1, 1);
    }
    printf("prompt %s\n", prompt);
    print_ids("tokens", ids, n);
    print_ids("greedy", ids + n, made);
    printf("gaps %d", made);
    for (int i = 0; i < made; i++) printf(" %.4f", gaps[i]);
    printf("\n");
}

static void logits(session *s, int n, char **args) {
    static llama_token ids[MAX_TOKENS];
    int n_vocab = llama_vocab_n_tokens(s->vocab);
    if (n < KEPT || n > MAX_TOKENS) die("logits needs 4 to 4096 ids");
    for (int i = 0; i < n; i++) ids[i] = atoi(args[i]);
    decode(s, ids, n, 0, KEPT);
    for (int i = n - KEPT; i < n; i++) {
        const float *row = llama_get_logits_ith(s->ctx, i);
        printf("logits %d %d\n", i, n_vocab);
        for (int k = 0; k < n_vocab; k++) printf("%.8g%c", row[k], k % 8 == 7 || k + 1 == n_vocab ? '\n' : ' ');
    }
}

int main(int argc, char **argv) {
    int is_greedy = argc == 5 && !strcmp(argv[2], "greedy");
    int is_logits = argc > 3 && !strcmp(argv[2], "logits");
    if (!is_greedy && !is_logits) {
        fprintf(stderr, "usage: llama_ref MODEL greedy N PROMPT | llama_ref MODEL logits ID...\n");
        return 2;
    }
    llama_log_set(quiet, NULL);
    session s = open_session(argv[1], is_logits);
    if (is_greedy)
        greedy(&s, atoi(argv[3]), argv[4]);
    else
        logits(&s, argc - 3, argv + 3);
    close_session(&s);
    return 0;
}
