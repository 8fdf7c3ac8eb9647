/* Cuts text into the words within which byte-pair merging happens: one table of families by the name
 * in tokenizer.ggml.pre, each a short list of regular expressions, applied one after the other: what
 * the first one matches and what lies between its matches is cut again by the second, and so on.
 *
 * Linear in practice: a word is one run of a character class, so that matching never goes back over
 * more than one run; PCRE2 keeps its state on the heap, so the stack stays small (case H02). White
 * space is spelled out, because PCRE2's \s knows a character (U+180E) that the original tokenizers do
 * not; \p classes are those of PCRE2's Unicode version.
 *
 * Bytes that are no character never reach the expressions: each run of them is a word by itself. */
#include "models/text/tokenizer_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>
#include <utf8proc.h>

#define WS      "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACES  "[" WS "]+(?![^" WS "])|[" WS "]+"
#define LINES   "[" WS "]*[\\r\\n]+|"
#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORDS   "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define UPPER   "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

/* GPT-2's expression, which many families share and others cut beforehand. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACES
/* Llama 3's and Qwen 2's differ in how many digits stay together. */
#define LLAMA3(digits) ENDINGS "|" WORDS digits "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" LINES SPACES
#define CASED(ending, digits)                                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ending "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ending           \
    "|" digits "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" LINES SPACES

enum { MAX_STAGES = 4 };

typedef struct family {
    const char *names; /* separated by spaces */
    pre_traits traits;
    const char *stages[MAX_STAGES]; /* none: the text is one word */
} family;

static const family FAMILIES[] = {
    {"gpt-2 phi-2 mpt olmo jais trillion gigachat jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code "
     "roberta-bpe "
     "a.x-4.0 mellum modern-bert granite-docling",
     {0},
     {GPT2}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     {.ignore_merges = true, .add_bos = true},
     {LLAMA3("\\p{N}{1,3}")}},
    {"dbrx smaug-bpe chatglm-bpe", {0}, {LLAMA3("\\p{N}{1,3}")}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b", {0}, {"\\p{N}", GPT2}},
    {"qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2",
     {.nfc = true},
     {LLAMA3("\\p{N}")}},
    {"falcon", {0}, {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"deepseek-v3 hunyuan-dense",
     {0},
     {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
      "[!-/:-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES SPACES}},
    {"tekken", {.ignore_merges = true, .add_bos = true}, {CASED("", "\\p{N}")}},
    {"gpt-4o llama4 kanana2", {0}, {CASED(ENDINGS "?", "\\p{N}{1,3}")}},
    {"default", {0}, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"none", {0}, {NULL}},
};

struct pre_split {
    const family *family;
    char *name;
    int n_stages;
    pcre2_general_context *memory;
    pcre2_match_context *limits;
    pcre2_code *stage[MAX_STAGES];
};

static void *pcre_malloc(size_t n, void *ctx) {
    (void)ctx;
    return sheaf_malloc(n);
}

static void pcre_free(void *p, void *ctx) {
    (void)ctx;
    sheaf_free(p);
}

static const family *find_family(const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof(FAMILIES) / sizeof(*FAMILIES); i++) {
        for (const char *p = FAMILIES[i].names; *p;) {
            size_t len = strcspn(p, " ");
            if (len == n && memcmp(p, name, n) == 0) return &FAMILIES[i];
            p += len + (p[len] == ' ');
        }
    }
    return NULL;
}

static sheaf_status compile(struct pre_split *p, const char *pattern) {
    int error;
    PCRE2_SIZE at;
    sheaf_status s = SHEAF_OK;
    pcre2_compile_context *ctx = pcre2_compile_context_create(p->memory);
    if (!ctx) return sheaf_fail(SHEAF_E_NO_MEMORY, "compiling the expressions of %s", p->name);
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &at, ctx);
    pcre2_compile_context_free(ctx);
    if (!code && error == PCRE2_ERROR_HEAP_FAILED)
        s = sheaf_fail(SHEAF_E_NO_MEMORY, "compiling the expressions of %s", p->name);
    else if (!code)
        s = sheaf_fail(SHEAF_E_INTERNAL, "expression of %s: error %d at %zu", p->name, error, (size_t)at);
    if (s) return s;
    /* Without JIT (not built in, or memory that may not be executable) matching is only slower. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    p->stage[p->n_stages++] = code;
    return SHEAF_OK;
}

sheaf_status pre_split_new(const char *name, struct pre_split **out) {
    const family *f = find_family(name);
    if (!f) return sheaf_fail(SHEAF_E_UNSUPPORTED, "pre-tokenizer \"%.64s\" is not known", name);
    sheaf_status s = SHEAF_OK;
    struct pre_split *p = sheaf_calloc(1, sizeof(*p));
    if (!p) return sheaf_fail(SHEAF_E_NO_MEMORY, "pre-tokenizer");
    p->family = f;
    p->name = sheaf_strdup(name);
    p->memory = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
    p->limits = p->memory ? pcre2_match_context_create(p->memory) : NULL;
    if (!p->name || !p->limits) {
        pre_split_free(p);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "pre-tokenizer %s", name);
    }
    /* The expressions are ours and linear; the default limit would refuse long runs of blanks. */
    pcre2_set_match_limit(p->limits, UINT32_MAX);
    for (int i = 0; i < MAX_STAGES && f->stages[i] && !s; i++) s = compile(p, f->stages[i]);
    if (s) {
        pre_split_free(p);
        return s;
    }
    *out = p;
    return SHEAF_OK;
}

void pre_split_free(struct pre_split *p) {
    if (!p) return;
    for (int i = 0; i < p->n_stages; i++) pcre2_code_free(p->stage[i]);
    pcre2_match_context_free(p->limits);
    pcre2_general_context_free(p->memory);
    sheaf_free(p->name);
    sheaf_free(p);
}

const pre_traits *pre_split_traits(const struct pre_split *p) { return &p->family->traits; }
const char *pre_split_name(const struct pre_split *p) { return p->name; }

/* One call's state: what PCRE2 writes to, and where words go. */
typedef struct cutter {
    const struct pre_split *p;
    pcre2_match_data *match;
    word_fn fn;
    void *ctx;
} cutter;

/* Finds the next match of `stage` at or after `from`; *begin = n if there is none. */
static sheaf_status next_match(const cutter *c, int stage, const char *s, size_t n, size_t from, size_t *begin,
                               size_t *end) {
    const pcre2_code *code = c->p->stage[stage];
    int rc = pcre2_match(code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, c->match, c->p->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, c->match, c->p->limits);
    *begin = *end = n;
    if (rc == PCRE2_ERROR_NOMATCH) return SHEAF_OK;
    if (rc == PCRE2_ERROR_NOMEMORY) return sheaf_fail(SHEAF_E_NO_MEMORY, "cutting text into words");
    if (rc < 0) return sheaf_fail(SHEAF_E_INTERNAL, "cutting text into words: PCRE2 error %d", rc);
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(c->match);
    *begin = at[0];
    *end = at[1];
    return SHEAF_OK;
}

/* Cuts `s` by the stages from `stage` on. Recurses once a stage, of which there are four at most. */
static sheaf_status cut(const cutter *c, int stage, const char *s, size_t n) {
    if (n == 0) return SHEAF_OK;
    if (stage == c->p->n_stages) return c->fn(c->ctx, s, n);
    sheaf_status st = SHEAF_OK;
    for (size_t at = 0; at < n && !st;) {
        size_t begin, end;
        st = next_match(c, stage, s, n, at, &begin, &end);
        if (!st) st = cut(c, stage + 1, s + at, begin - at);
        if (!st) st = cut(c, stage + 1, s + begin, end - begin);
        at = end;
    }
    return st;
}

sheaf_status pre_split_run(const struct pre_split *p, const char *text, size_t n, word_fn fn, void *ctx) {
    cutter c = {p, pcre2_match_data_create(1, p->memory), fn, ctx};
    if (!c.match) return sheaf_fail(SHEAF_E_NO_MEMORY, "cutting text into words");
    sheaf_status s = SHEAF_OK;
    for (size_t at = 0; at < n && !s;) {
        size_t bad, len = n - at;
        if (!sheaf_utf8_valid(text + at, len, &bad)) len = bad;
        s = cut(&c, 0, text + at, len);
        at += len;
        size_t run = at;
        while (run < n && sheaf_utf8_char(text + run, n - run, NULL) == 0) run++;
        if (!s && run > at) s = fn(ctx, text + at, run - at);
        at = run;
    }
    pcre2_match_data_free(c.match);
    return s;
}

/* --- normal form -------------------------------------------------------------------------------- */

/* Putting marks into canonical order takes time quadratic in their number: longer runs of marks than
 * any language has are left as they are, rather than letting a text choose our running time. */
enum { MAX_MARKS = 64 };

static bool may_normalise(const char *text, size_t n) {
    size_t marks = 0, at = 0;
    bool ascii = true;
    while (at < n) {
        utf8proc_int32_t c;
        utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &c);
        if (len <= 0) return false;
        if (c >= 0x80) ascii = false;
        marks = c >= 0x300 && utf8proc_get_property(c)->combining_class ? marks + 1 : 0;
        if (marks > MAX_MARKS) return false;
        at += (size_t)len;
    }
    return !ascii;
}

sheaf_status text_nfc(const char *text, size_t n, char **out, size_t *out_n) {
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    *out = NULL;
    if (!may_normalise(text, n)) return SHEAF_OK;
    utf8proc_ssize_t need = utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, NULL, 0, options);
    if (need < 0) return SHEAF_OK; /* not UTF-8 by its rules: left as it is */
    utf8proc_int32_t *points = sheaf_malloc(((size_t)need + 1) * sizeof(*points));
    if (!points) return sheaf_fail(SHEAF_E_NO_MEMORY, "normalising %zu bytes", n);
    need = utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, points, need, options);
    utf8proc_ssize_t bytes = need < 0 ? need : utf8proc_reencode(points, need, options);
    if (bytes < 0) {
        sheaf_free(points);
        return SHEAF_OK;
    }
    *out = (char *)points; /* re-encoded in place */
    *out_n = (size_t)bytes;
    return SHEAF_OK;
}
