/* Ids of hard strings against those of the original implementations, for each vocabulary of the
 * shared test data; and what must hold for any text: it comes back, in time, on a small stack. */
#include "tests/models/text_support.h"
#include "tests/support/sanitized.h"

#include <pthread.h>
#include <time.h>

static const char *const VOCABULARIES[] = {"gpt-2", "llama-bpe", "llama-spm", "phi-3", "falcon", "starcoder", "qwen2"};
enum { N_VOCABULARIES = sizeof(VOCABULARIES) / sizeof(*VOCABULARIES) };

static const char *vocabulary(int i) {
    char name[64];
    snprintf(name, sizeof(name), "vocab/%s.gguf", VOCABULARIES[i]);
    return shared_file(name);
}

/* Leaves the test, counted as skipped, where the shared data is absent. */
#define NEED_VOCABULARIES()                                                                                            \
    if (!vocabulary(0)) cr_skip_test("no vocabularies: ../shared/data (or $SHEAF_SHARED/data) is absent")

static void ids_text(const sheaf_ids *ids, char *buf, size_t n) {
    size_t at = 0;
    buf[0] = 0;
    for (size_t i = 0; i < ids->n && at + 16 < n; i++) at += (size_t)snprintf(buf + at, n - at, " %d", ids->v[i]);
}

/* One string and its line of ids ("" or " 1 2 3"). */
static void check_string(const sheaf_tokenizer *t, const char *vocab, int index, const char *text, size_t n,
                         const char *line) {
    sheaf_ids ids = {0};
    char got[8192];
    expect_ok(sheaf_tokenize(t, text, n, 0, &ids));
    ids_text(&ids, got, sizeof(got));
    cr_assert(strcmp(got, line) == 0, "%s, string %d \"%.*s\": ids are%s, expected%s", vocab, index, (int)n, text, got,
              line);
    sheaf_ids_free(&ids);
}

static int check_vocabulary(const char *path, const char *vocab) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char name[1100];
    size_t n;
    int count = 0;
    sheaf_tokenizer *t = open_tokenizer(path);
    snprintf(name, sizeof(name), "%s.inp", path);
    char *inputs = read_file(name, &n), *text = inputs;
    snprintf(name, sizeof(name), "%s.out", path);
    char *outputs = read_file(name, &n), *line = outputs, *next;
    for (char *end; (end = strstr(text, separator)); text = end + sizeof(separator) - 1, line = next, count++) {
        next = strchr(line, '\n');
        cr_assert(next, "%s: fewer lines of ids than strings (%d)", vocab, count);
        *next++ = 0;
        if (line[0] && line[strlen(line) - 1] == ' ') line[strlen(line) - 1] = 0;
        check_string(t, vocab, count, text, (size_t)(end - text), line);
    }
    free(inputs);
    free(outputs);
    sheaf_tokenizer_free(t);
    return count;
}

Test(tokenizer_vocabularies, give_the_ids_of_the_original_implementations, .timeout = 120) {
    NEED_VOCABULARIES();
    for (int i = 0; i < N_VOCABULARIES; i++) {
        char path[1024];
        snprintf(path, sizeof(path), "%s", vocabulary(i));
        int count = check_vocabulary(path, VOCABULARIES[i]);
        cr_assert(count >= 40, "%s: only %d strings were checked", VOCABULARIES[i], count);
    }
}

/* --- any text comes back -------------------------------------------------------------------------- */

static uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static size_t put_utf8(uint32_t c, char *out) {
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) return out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 63)), out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18), out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63)), out[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* Bytes, ASCII, or code points from everywhere, by `kind`; about n bytes. */
static size_t random_text(uint64_t *state, int kind, char *buf, size_t n) {
    size_t at = 0;
    while (at + 4 <= n) {
        uint64_t r = random_next(state);
        uint32_t c = (uint32_t)(r >> 8);
        if (kind == 0)
            buf[at++] = (char)r;
        else if (kind == 1)
            at += put_utf8(" \n\t'aeKZ09.,!<|>sdtre"[c % 21], buf + at);
        else {
            c %= (r & 3) == 0 ? 0x110000 : (r & 3) == 1 ? 0x300 : 0x3100;
            if (c < 0xd800 || c > 0xdfff) at += put_utf8(c, buf + at);
        }
    }
    return at;
}

/* Some vocabularies have no token for bytes that their training text did not have. */
static bool lacks_byte_of(const sheaf_tokenizer *t, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (sheaf_tokenizer_find(t, text + i, 1) < 0) return true;
    return false;
}

static void expect_round_trip(const sheaf_tokenizer *t, const char *vocab, const char *text, size_t n) {
    sheaf_ids ids = {0};
    char back[1024];
    size_t need;
    sheaf_status status = sheaf_tokenize(t, text, n, 0, &ids);
    if (status == SHEAF_E_UNSUPPORTED && lacks_byte_of(t, text, n)) {
        sheaf_ids_free(&ids);
        return;
    }
    expect_status(status, SHEAF_OK);
    expect_ok(sheaf_detokenize(t, ids.v, ids.n, false, back, sizeof(back), &need));
    cr_assert(need == n && memcmp(back, text, n) == 0, "%s: \"%.*s\" (%zu bytes) came back as \"%.*s\" (%zu)", vocab,
              (int)n, text, n, (int)need, back, need);
    sheaf_ids_free(&ids);
}

/* What a vocabulary may not keep: qwen2 normalises characters, SentencePiece's U+2581 is a space. */
static bool keeps(const char *vocab, int kind, const char *text, size_t n) {
    if (strcmp(vocab, "qwen2") == 0) return kind < 2;
    return memmem(text, n, "\xe2\x96\x81", 3) == NULL;
}

Test(tokenizer_vocabularies, give_back_any_text, .timeout = 120) {
    NEED_VOCABULARIES();
    uint64_t state = 88172645463325252u;
    for (int i = 0; i < N_VOCABULARIES; i++) {
        sheaf_tokenizer *t = open_tokenizer(vocabulary(i));
        for (int round = 0; round < 1500; round++) {
            char text[512];
            int kind = round % 3;
            size_t n = random_text(&state, kind, text, random_next(&state) % sizeof(text));
            if (keeps(VOCABULARIES[i], kind, text, n)) expect_round_trip(t, VOCABULARIES[i], text, n);
        }
        sheaf_tokenizer_free(t);
    }
}

/* --- long runs (case H02) ---------------------------------------------------------------------- */

typedef struct long_run {
    const sheaf_tokenizer *t;
    const char *unit;
    size_t bytes;
    double seconds;
    sheaf_status status;
    size_t ids;
} long_run;

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts); /* other programs on the machine do not count */
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void *run_long(void *arg) {
    long_run *r = arg;
    size_t unit = strlen(r->unit);
    char *text = malloc(r->bytes + unit);
    for (size_t at = 0; at < r->bytes; at += unit) memcpy(text + at, r->unit, unit);
    sheaf_ids ids = {0};
    double start = now();
    r->status = sheaf_tokenize(r->t, text, r->bytes / unit * unit, SHEAF_TOKENIZE_PARSE_SPECIAL, &ids);
    r->seconds = now() - start;
    r->ids = ids.n;
    sheaf_ids_free(&ids);
    free(text);
    return NULL;
}

static void on_small_stack(long_run *r) {
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 << 10);
    cr_assert(pthread_create(&thread, &attr, run_long, r) == 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
}

/* Sanitizers slow the code by an order of magnitude; the bound is for the code as users run it. */
enum { SLOWER = SANITIZED ? 20 : 1, LONG = SANITIZED ? 1 << 18 : 1 << 20 };

Test(tokenizer_vocabularies, take_long_runs_in_linear_time_on_a_small_stack, .timeout = 600) {
    static const char *const units[] = {"k",   "Q",  " ", "\n",  ".", "\xe4\xb8\xad", "\xcc\x81",   "\xcc\x81\xcc\xa7",
                                        " \n", "a ", "<", "\t ", "0", "\xff",         "<|im_start|"};
    NEED_VOCABULARIES();
    for (int i = 0; i < N_VOCABULARIES; i++) {
        sheaf_tokenizer *t = open_tokenizer(vocabulary(i));
        for (size_t u = 0; u < sizeof(units) / sizeof(*units); u++) {
            long_run r = {.t = t, .unit = units[u], .bytes = LONG};
            on_small_stack(&r);
            if (units[u][0] == '\xff' && r.status == SHEAF_E_UNSUPPORTED && lacks_byte_of(t, units[u], 1)) {
                continue; /* no token for this byte, and it says so */
            }
            cr_assert(r.status == SHEAF_OK && r.ids > 0, "%s, long run of \"%s\": %s, %zu ids", VOCABULARIES[i],
                      units[u], sheaf_status_name(r.status), r.ids);
            cr_assert(r.seconds < 2.0 * SLOWER, "%s, long run of \"%s\" took %.2f s", VOCABULARIES[i], units[u],
                      r.seconds);
        }
        sheaf_tokenizer_free(t);
    }
}
