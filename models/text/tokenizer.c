/* The tokenizer as its users meet it: loads a vocabulary, finds special tokens in a text, hands the
 * stretches between them to the merging of the vocabulary's kind, and turns ids back into bytes. The
 * kinds themselves are in bpe.c and spm.c, the words of BPE in pretokenize.c. */
#include "models/text/tokenizer_internal.h"

#include <string.h>

/* --- ids ------------------------------------------------------------------------------------------ */

sheaf_status sheaf_ids_append(sheaf_ids *ids, const int32_t *v, size_t n) {
    size_t need, bytes;
    if (sheaf_add_overflow(ids->n, n, &need))
        return sheaf_fail(SHEAF_E_RANGE, "token list of %zu and %zu ids", ids->n, n);
    if (need > ids->capacity) {
        size_t capacity = need + need / 2 + 16;
        if (capacity < need || sheaf_mul_overflow(capacity, sizeof(int32_t), &bytes))
            return sheaf_fail(SHEAF_E_RANGE, "token list of %zu ids: too many", need);
        int32_t *grown = sheaf_realloc(ids->v, bytes);
        if (!grown) return sheaf_fail(SHEAF_E_NO_MEMORY, "token list of %zu ids: out of memory", capacity);
        ids->v = grown;
        ids->capacity = capacity;
    }
    if (n) memcpy(ids->v + ids->n, v, n * sizeof(int32_t));
    ids->n = need;
    return SHEAF_OK;
}

void sheaf_ids_free(sheaf_ids *ids) {
    sheaf_free(ids->v);
    *ids = (sheaf_ids){0};
}

/* --- loading -------------------------------------------------------------------------------------- */

/* "bpe" or "spm" by tokenizer.ggml.model. */
static sheaf_status read_kind(sheaf_tokenizer *t, const sheaf_gguf *g) {
    sheaf_str model;
    sheaf_status s = sheaf_gguf_get_str(g, "tokenizer.ggml.model", &model);
    if (s) return s;
    if (model.n == 5 && memcmp(model.s, "llama", 5) == 0)
        t->spm = true;
    else if (model.n != 4 || memcmp(model.s, "gpt2", 4) != 0)
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "tokenizer.ggml.model: \"%.*s\" is not supported (gpt2 and llama are)",
                          (int)(model.n < 64 ? model.n : 64), model.s);
    return SHEAF_OK;
}

static sheaf_status refuse_pre(bool forced, sheaf_str name) {
    sheaf_status s =
        name.n
            ? sheaf_error_context(SHEAF_E_UNSUPPORTED, "%s", forced ? "the forced family" : "tokenizer.ggml.pre")
            : sheaf_fail(SHEAF_E_UNSUPPORTED, "tokenizer.ggml.pre: absent, so how to cut text into words is unknown");
    return sheaf_error_hint(s,
                            "--force-pretokenizer cuts text as \"default\" does; ids may then differ from the model's");
}

static sheaf_status load_bpe(sheaf_tokenizer *t, const sheaf_gguf *g, const sheaf_tokenizer_options *opts) {
    char name[64] = "";
    sheaf_str pre = {"", 0};
    sheaf_status s;
    if (opts->pre)
        pre = (sheaf_str){opts->pre, strlen(opts->pre)};
    else if (sheaf_gguf_find(g, "tokenizer.ggml.pre") >= 0 && (s = sheaf_gguf_get_str(g, "tokenizer.ggml.pre", &pre)))
        return s;
    if (pre.n >= sizeof(name)) pre.n = sizeof(name) - 1;
    memcpy(name, pre.s, pre.n);
    s = pre.n ? pre_split_new(name, &t->pre) : SHEAF_E_UNSUPPORTED;
    if (s == SHEAF_E_UNSUPPORTED && opts->force) {
        sheaf_log(SHEAF_LOG_WARN,
                  "tokenizer: pre-tokenizer \"%s\" is not known; text is cut as \"default\" does, and ids may differ",
                  name);
        s = pre_split_new("default", &t->pre);
    }
    if (s == SHEAF_E_UNSUPPORTED) return refuse_pre(opts->pre != NULL, pre);
    if (s) return s;
    t->add_bos = pre_split_traits(t->pre)->add_bos;
    return vocab_load_merges(t, g);
}

static sheaf_status read_flag(const sheaf_gguf *g, const char *key, bool *value) {
    return sheaf_gguf_find(g, key) < 0 ? SHEAF_OK : sheaf_gguf_get_bool(g, key, value);
}

static sheaf_status load(sheaf_tokenizer *t, const sheaf_gguf *g, const sheaf_tokenizer_options *opts) {
    sheaf_status s = read_kind(t, g);
    if (!s) s = vocab_load(t, g);
    if (!s) s = special_build(t);
    if (!s && t->spm) t->add_space_prefix = t->add_bos = true;
    if (!s && !t->spm) s = load_bpe(t, g, opts);
    if (!s && t->spm) s = read_flag(g, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix);
    if (!s) s = read_flag(g, "tokenizer.ggml.add_bos_token", &t->add_bos);
    if (!s) s = read_flag(g, "tokenizer.ggml.add_eos_token", &t->add_eos);
    return s;
}

sheaf_status sheaf_tokenizer_new(const sheaf_gguf *g, const sheaf_tokenizer_options *opts, sheaf_tokenizer **out) {
    sheaf_tokenizer *t = sheaf_calloc(1, sizeof(*t));
    if (!t) return sheaf_fail(SHEAF_E_NO_MEMORY, "tokenizer");
    const sheaf_tokenizer_options none = {0};
    sheaf_status s = load(t, g, opts ? opts : &none);
    if (s) {
        sheaf_tokenizer_free(t);
        return sheaf_error_context(s, "reading the vocabulary");
    }
    *out = t;
    return SHEAF_OK;
}

void sheaf_tokenizer_free(sheaf_tokenizer *t) {
    if (!t) return;
    pre_split_free(t->pre);
    vocab_free(t);
    sheaf_free(t);
}

/* --- text to ids ---------------------------------------------------------------------------------- */

/* One call's state. Bytes inside `input` spans cannot be part of a control token. */
typedef struct pass {
    const sheaf_tokenizer *t;
    const char *text;
    size_t n;
    bool control;
    const sheaf_span *input;
    size_t n_input;
    merge_work work;
    sheaf_ids *out;
} pass;

static sheaf_status take_word(void *ctx, const char *word, size_t n) {
    pass *p = ctx;
    return bpe_word(p->t, &p->work, word, n, p->out);
}

/* Plain text between two special tokens; `first`: nothing or a control token stands before it. */
static sheaf_status plain_text(pass *p, size_t begin, size_t end, bool first) {
    const char *text = p->text + begin;
    size_t n = end - begin;
    if (n == 0) return SHEAF_OK;
    if (p->t->spm) return spm_text(p->t, &p->work, text, n, first && p->t->add_space_prefix, p->out);
    char *normal = NULL;
    size_t normal_n = 0;
    sheaf_status s = pre_split_traits(p->t->pre)->nfc ? text_nfc(text, n, &normal, &normal_n) : SHEAF_OK;
    if (!s)
        s = normal ? pre_split_run(p->t->pre, normal, normal_n, take_word, p)
                   : pre_split_run(p->t->pre, text, n, take_word, p);
    sheaf_free(normal);
    return s;
}

/* The special token at `at`, -1 for none. `span` is the first input span that ends after `at`. */
static int32_t special_at(const pass *p, size_t at, size_t span) {
    int32_t user = special_match(p->t, p->text + at, p->n - at, false), control = -1;
    size_t own = span < p->n_input ? p->input[span].begin : p->n; /* the template's bytes go up to here */
    if (p->control && at < own) control = special_match(p->t, p->text + at, own - at, true);
    if (control < 0) return user;
    if (user < 0) return control;
    return p->t->tokens[user].n > p->t->tokens[control].n ? user : control;
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static sheaf_status run_pass(pass *p) {
    sheaf_status s = SHEAF_OK;
    size_t begin = 0, span = 0;
    bool first = true;
    for (size_t at = 0; at < p->n && !s;) {
        if (!p->t->special_first[(uint8_t)p->text[at]]) {
            at++;
            continue;
        }
        while (span < p->n_input && p->input[span].end <= at) span++;
        int32_t id = special_at(p, at, span);
        if (id < 0) {
            at++;
            continue;
        }
        const token *tok = &p->t->tokens[id];
        s = plain_text(p, begin, at, first);
        if (!s) s = sheaf_ids_append(p->out, &id, 1);
        at += tok->n;
        while (tok->rstrip && at < p->n && is_blank(p->text[at])) at++;
        begin = at;
        first = tok->type != SHEAF_TOKEN_USER_DEFINED;
    }
    return s ? s : plain_text(p, begin, p->n, first);
}

/* BOS goes in first, and out again if the text brought its own. */
static sheaf_status run_with_bos(pass *p) {
    const sheaf_tokenizer *t = p->t;
    size_t start = p->out->n;
    sheaf_status s = sheaf_ids_append(p->out, &t->bos, 1);
    if (!s) s = run_pass(p);
    sheaf_ids *out = p->out;
    if (s || out->n < start + 2 || out->v[start + 1] != t->bos) return s;
    memmove(out->v + start, out->v + start + 1, (out->n - start - 1) * sizeof(int32_t));
    out->n--;
    return SHEAF_OK;
}

static sheaf_status tokenize(pass *p, bool add_bos, bool add_eos) {
    const sheaf_tokenizer *t = p->t;
    size_t start = p->out->n;
    /* Work memory is indexed by 32 bits; nobody's prompt is longer (case H08). */
    if (p->n > INT32_MAX)
        return sheaf_fail(SHEAF_E_RANGE, "text of %zu bytes: at most %d can be tokenized at once", p->n, INT32_MAX);
    sheaf_status s = add_bos && t->bos >= 0 ? run_with_bos(p) : run_pass(p);
    if (!s && add_eos && t->eos >= 0 && !(p->out->n > start && p->out->v[p->out->n - 1] == t->eos))
        s = sheaf_ids_append(p->out, &t->eos, 1);
    merge_work_free(&p->work);
    if (s) p->out->n = start;
    return s;
}

sheaf_status sheaf_tokenize(const sheaf_tokenizer *t, const char *text, size_t n, unsigned flags, sheaf_ids *out) {
    pass p = {.t = t, .text = text, .n = n, .control = flags & SHEAF_TOKENIZE_PARSE_SPECIAL, .out = out};
    bool add = flags & SHEAF_TOKENIZE_ADD_SPECIAL;
    return tokenize(&p, add && t->add_bos, add && t->add_eos);
}

sheaf_status sheaf_tokenize_rendered(const sheaf_tokenizer *t, const sheaf_rendered *r, sheaf_ids *out) {
    pass p = {
        .t = t, .text = r->text, .n = r->n, .control = true, .input = r->input, .n_input = r->n_input, .out = out};
    return tokenize(&p, t->add_bos, false);
}

sheaf_status sheaf_tokenize_into(const sheaf_tokenizer *t, const char *text, size_t n, unsigned flags, int32_t *ids,
                                 size_t capacity, size_t *count) {
    sheaf_ids list = {0};
    sheaf_status s = sheaf_tokenize(t, text, n, flags, &list);
    *count = list.n;
    if (!s && list.n > capacity) s = sheaf_fail(SHEAF_E_RANGE, "%zu tokens, room for %zu", list.n, capacity);
    if (!s && list.n) memcpy(ids, list.v, list.n * sizeof(int32_t));
    sheaf_ids_free(&list);
    return s;
}

/* --- ids to text ---------------------------------------------------------------------------------- */

static const token *token_at(const sheaf_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->n_tokens ? &t->tokens[id] : NULL;
}

static bool is_silent(const token *tok) { return tok->type == SHEAF_TOKEN_CONTROL || tok->type == SHEAF_TOKEN_UNKNOWN; }

sheaf_str sheaf_token_piece(const sheaf_tokenizer *t, int32_t id, bool special) {
    const token *tok = token_at(t, id);
    if (!tok || (is_silent(tok) && !special)) return (sheaf_str){"", 0};
    return (sheaf_str){tok->text, tok->n};
}

sheaf_status sheaf_detokenize(const sheaf_tokenizer *t, const int32_t *ids, size_t n, bool special, char *buf,
                              size_t capacity, size_t *need) {
    size_t total = 0;
    bool first = true; /* mirrors run_pass: here a space was put that is not the text's */
    for (size_t i = 0; i < n; i++) {
        const token *tok = token_at(t, ids[i]);
        sheaf_str piece = sheaf_token_piece(t, ids[i], special);
        if (tok && is_silent(tok)) {
            first = true;
        } else {
            bool extra =
                first && t->add_space_prefix && piece.n && piece.s[0] == ' ' && tok->type != SHEAF_TOKEN_USER_DEFINED;
            piece = (sheaf_str){piece.s + extra, piece.n - extra};
            first = false;
        }
        size_t fits = total < capacity ? capacity - total : 0;
        if (piece.n < fits) fits = piece.n;
        if (fits) memcpy(buf + total, piece.s, fits);
        total += piece.n;
    }
    *need = total;
    return total <= capacity ? SHEAF_OK : sheaf_fail(SHEAF_E_RANGE, "text of %zu bytes, room for %zu", total, capacity);
}

/* --- asking ----------------------------------------------------------------------------------------- */

int32_t sheaf_tokenizer_size(const sheaf_tokenizer *t) { return t->n_tokens; }
const char *sheaf_tokenizer_model(const sheaf_tokenizer *t) { return t->spm ? "spm" : "bpe"; }
const char *sheaf_tokenizer_pre(const sheaf_tokenizer *t) { return t->pre ? pre_split_name(t->pre) : ""; }
int32_t sheaf_tokenizer_bos(const sheaf_tokenizer *t) { return t->bos; }
int32_t sheaf_tokenizer_eos(const sheaf_tokenizer *t) { return t->eos; }
int32_t sheaf_tokenizer_unknown(const sheaf_tokenizer *t) { return t->unknown; }
int32_t sheaf_tokenizer_padding(const sheaf_tokenizer *t) { return t->padding; }
bool sheaf_tokenizer_adds_bos(const sheaf_tokenizer *t) { return t->add_bos; }
bool sheaf_tokenizer_adds_eos(const sheaf_tokenizer *t) { return t->add_eos; }

sheaf_token_type sheaf_token_type_of(const sheaf_tokenizer *t, int32_t id) {
    const token *tok = token_at(t, id);
    return tok ? (sheaf_token_type)tok->type : SHEAF_TOKEN_NONE;
}

bool sheaf_token_is_end(const sheaf_tokenizer *t, int32_t id) {
    const token *tok = token_at(t, id);
    return tok && tok->end;
}

const int32_t *sheaf_tokenizer_ends(const sheaf_tokenizer *t, size_t *n) {
    *n = t->n_ends;
    return t->ends;
}
