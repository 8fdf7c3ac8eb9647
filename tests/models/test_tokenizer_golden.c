/* Ids of hard strings against those that `tokenizers` gives, for two small vocabularies of this repository
 * (tests/golden/make_tokenizer.py): byte-level under five pre-tokenizers, and SentencePiece. The vocabularies of
 * real models are in test_tokenizer_vocabularies.c, where they are at hand. */
#include "tests/models/text_support.h"
#include "tests/support/gguf_build.h"

#define FOLDER SHEAF_SOURCE_DIR "/tests/golden/tokenizer/"
enum { N_BYTES = 256, MOST = 2000 };

typedef struct vocabulary {
    char *text; /* merges.txt or pieces.txt, cut into lines */
    const char *line[MOST];
    char token[N_BYTES + MOST][40];
    const char *tokens[N_BYTES + MOST];
    int32_t type[N_BYTES + MOST];
    float score[N_BYTES + MOST];
    int n_lines, n;
} vocabulary;

static int cut_lines(char *text, const char **line, int most) {
    int n = 0;
    for (char *end; n < most && (end = strchr(text, '\n')); text = end + 1) {
        *end = 0;
        line[n++] = text;
    }
    return n;
}

static void add_token(vocabulary *v, int32_t type, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(v->token[v->n], sizeof v->token[0], format, args);
    va_end(args);
    v->tokens[v->n] = v->token[v->n];
    v->score[v->n] = (float)-v->n;
    v->type[v->n++] = type;
}

/* The letter of a byte: itself where it can be seen, else one of those from U+0100 on. */
static void add_byte_letters(vocabulary *v) {
    int next = 256;
    for (int b = 0; b < N_BYTES; b++) {
        bool seen = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        int c = seen ? b : next++;
        if (c < 0x80)
            add_token(v, 1, "%c", c);
        else
            add_token(v, 1, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 63));
    }
}

static sheaf_tokenizer *open_with(const vocabulary *v, const char *model, const char *pre, bool merges) {
    gguf_build *b = gguf_build_new();
    sheaf_tokenizer *t;
    sheaf_gguf *g;
    size_t n;
    gguf_build_str(b, "general.architecture", "llama");
    gguf_build_str(b, "tokenizer.ggml.model", model);
    gguf_build_str(b, "tokenizer.ggml.pre", pre);
    gguf_build_strs(b, "tokenizer.ggml.tokens", v->tokens, v->n);
    gguf_build_array(b, "tokenizer.ggml.token_type", SHEAF_GGUF_I32, v->type, v->n);
    if (merges)
        gguf_build_strs(b, "tokenizer.ggml.merges", v->line, v->n_lines);
    else
        gguf_build_array(b, "tokenizer.ggml.scores", SHEAF_GGUF_F32, v->score, v->n);
    gguf_build_bool(b, "tokenizer.ggml.add_bos_token", false);
    const uint8_t *bytes = gguf_build_bytes(b, &n);
    expect_ok(sheaf_gguf_open_memory(bytes, n, &g));
    expect_ok(sheaf_tokenizer_new(g, NULL, &t));
    sheaf_gguf_close(g);
    gguf_build_free(b);
    return t;
}

static sheaf_tokenizer *open_merges(const char *pre) {
    vocabulary *v = calloc(1, sizeof *v);
    size_t n;
    v->text = read_file(FOLDER "merges.txt", &n);
    v->n_lines = cut_lines(v->text, v->line, MOST);
    add_byte_letters(v);
    for (int i = 0; i < v->n_lines; i++) {
        int left = (int)strcspn(v->line[i], " ");
        add_token(v, 1, "%.*s%s", left, v->line[i], v->line[i] + left + 1);
    }
    sheaf_tokenizer *t = open_with(v, "gpt2", pre, true);
    free(v->text);
    free(v);
    return t;
}

static sheaf_tokenizer *open_pieces(void) {
    vocabulary *v = calloc(1, sizeof *v);
    size_t n;
    v->text = read_file(FOLDER "pieces.txt", &n);
    v->n_lines = cut_lines(v->text, v->line, MOST);
    add_token(v, 2, "<unk>");
    add_token(v, 3, "<s>");
    add_token(v, 3, "</s>");
    for (int b = 0; b < N_BYTES; b++) add_token(v, 6, "<0x%02X>", b);
    for (int i = 0; i < v->n_lines; i++) add_token(v, 1, "%s", v->line[i]);
    sheaf_tokenizer *t = open_with(v, "llama", "default", false);
    free(v->text);
    free(v);
    return t;
}

/* \n \r \t as they are meant; in place. */
static void undo_escapes(char *s) {
    char *to = s;
    for (; *s; s++) {
        const char *which = *s == '\\' && s[1] ? strchr("nrt", s[1]) : NULL;
        *to++ = !which ? *s : s[1] == 'n' ? '\n' : s[1] == 'r' ? '\r' : '\t';
        s += which != NULL;
    }
    *to = 0;
}

static void check_line(const sheaf_tokenizer *t, const char *pre, const char *text, const char *wanted) {
    char got[4096] = "";
    size_t at = 0;
    sheaf_ids ids = {0};
    expect_ok(sheaf_tokenize(t, text, strlen(text), 0, &ids));
    for (size_t i = 0; i < ids.n && at + 16 < sizeof got; i++)
        at += (size_t)snprintf(got + at, sizeof got - at, " %d", ids.v[i]);
    cr_assert(strcmp(got, wanted) == 0, "%s, \"%s\": ids are%s, expected%s", pre, text, got, wanted);
    sheaf_ids_free(&ids);
}

Test(tokenizer_golden, small_vocabularies_give_the_ids_of_the_original, .timeout = 60) {
    static const char *string[100], *row[1000];
    size_t size;
    char *strings = read_file(FOLDER "strings.txt", &size), *golden = read_file(FOLDER "ids.golden", &size);
    int n_strings = cut_lines(strings, string, 100), n_rows = cut_lines(golden, row, 1000);
    char open[32] = "";
    sheaf_tokenizer *t = NULL;
    for (int i = 1; i < n_strings; i++) undo_escapes((char *)(uintptr_t)string[i]); /* line 0 is a comment in both */
    cr_assert(n_rows - 1 == 6 * (n_strings - 1), "%d rows of ids for %d strings", n_rows - 1, n_strings - 1);
    for (int i = 1; i < n_rows; i++) {
        char pre[32];
        int k, at;
        cr_assert(sscanf(row[i], "%31s %d%n", pre, &k, &at) == 2 && k + 1 < n_strings, "row %d: \"%s\"", i, row[i]);
        if (strcmp(pre, open) != 0) {
            sheaf_tokenizer_free(t);
            t = strcmp(pre, "default") == 0 ? open_pieces() : open_merges(pre);
            snprintf(open, sizeof open, "%s", pre);
        }
        check_line(t, pre, string[k + 1], row[i] + at);
    }
    sheaf_tokenizer_free(t);
    free(strings);
    free(golden);
}
