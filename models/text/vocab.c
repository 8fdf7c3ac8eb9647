/* Reads a vocabulary out of GGUF metadata: token texts, types, scores, special ids and merges, and
 * builds the hash tables over them. Everything of the file is checked here, so that the rest of the
 * tokenizer may index without asking. It does not tokenize. */
#include "models/text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_PRINTABLE = 33, BYTE_CODE_POINTS = 324 };

/* --- hash tables ------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    return h;
}

static uint64_t hash_text(uint64_t seed, const char *s, size_t n) {
    uint64_t h = seed ^ n;
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = mix(h ^ w) * 0xff51afd7ed558ccdu;
        s += 8;
        n -= 8;
    }
    uint64_t w = 0;
    memcpy(&w, s, n);
    return mix(h ^ w);
}

static uint64_t hash_pair(uint64_t seed, int32_t left, int32_t right) {
    return mix(seed ^ ((uint64_t)(uint32_t)left << 32 | (uint32_t)right)) * 0xff51afd7ed558ccdu >> 7;
}

/* Smallest power of two with at least twice `n` slots. */
static size_t slots_for(size_t n) {
    size_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    return slots;
}

static sheaf_status text_map_new(text_map *m, size_t n, uint64_t seed) {
    size_t slots = slots_for(n);
    m->slots = sheaf_malloc(slots * sizeof(int32_t));
    if (!m->slots) return sheaf_fail(SHEAF_E_NO_MEMORY, "token table of %zu slots", slots);
    memset(m->slots, 0xff, slots * sizeof(int32_t));
    m->mask = slots - 1;
    m->seed = seed;
    return SHEAF_OK;
}

/* Adds a token by its text; the first of several equal texts stays. */
static void text_map_add(const sheaf_tokenizer *t, text_map *m, int32_t id) {
    const token *tok = &t->tokens[id];
    size_t i = hash_text(m->seed, tok->text, tok->n) & m->mask;
    for (; m->slots[i] >= 0; i = (i + 1) & m->mask) {
        const token *other = &t->tokens[m->slots[i]];
        if (other->n == tok->n && memcmp(other->text, tok->text, tok->n) == 0) return;
    }
    m->slots[i] = id;
}

int32_t text_map_find(const sheaf_tokenizer *t, const text_map *m, const char *s, size_t n) {
    size_t i = hash_text(m->seed, s, n) & m->mask;
    for (; m->slots[i] >= 0; i = (i + 1) & m->mask) {
        const token *tok = &t->tokens[m->slots[i]];
        if (tok->n == n && memcmp(tok->text, s, n) == 0) return m->slots[i];
    }
    return -1;
}

uint32_t merge_map_find(const merge_map *m, int32_t left, int32_t right) {
    size_t i = hash_pair(m->seed, left, right) & m->mask;
    for (; m->slots[i]; i = (i + 1) & m->mask) {
        const merge *e = &m->merges[m->slots[i] - 1];
        if (e->left == left && e->right == right) return m->slots[i] - 1;
    }
    return UINT32_MAX;
}

/* --- token texts ------------------------------------------------------------------------------- */

/* The code point that stands for each byte in a byte-level vocabulary (printable ones stand for
 * themselves, the others for 256, 257, ...), inverted: byte by code point, -1 for none. */
static void byte_level_table(int16_t byte_of[BYTE_CODE_POINTS]) {
    for (int i = 0; i < BYTE_CODE_POINTS; i++) byte_of[i] = -1;
    int next = 256;
    for (int b = 0; b < 256; b++) {
        bool self = (b >= FIRST_PRINTABLE && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        byte_of[self ? b : next++] = (int16_t)b;
    }
}

/* Undoes the byte-level spelling of `s` into dst (n bytes of room). False: it is not such a text. */
static bool byte_level_decode(const int16_t byte_of[BYTE_CODE_POINTS], sheaf_str s, char *dst, size_t *n) {
    size_t out = 0;
    for (size_t i = 0; i < s.n;) {
        size_t len = sheaf_utf8_char(s.s + i, s.n - i, NULL);
        if (len == 0 || len > 2) return false;
        uint32_t c = (uint8_t)s.s[i];
        if (len == 2) c = (c & 0x1f) << 6 | ((uint8_t)s.s[i + 1] & 0x3f);
        if (c >= BYTE_CODE_POINTS || byte_of[c] < 0) return false;
        dst[out++] = (char)byte_of[c];
        i += len;
    }
    *n = out;
    return true;
}

/* U+2581 stands for a space in SentencePiece vocabularies. */
static size_t spaces_decode(sheaf_str s, char *dst) {
    size_t out = 0;
    for (size_t i = 0; i < s.n;) {
        if (s.n - i >= 3 && memcmp(s.s + i, "\xe2\x96\x81", 3) == 0) {
            dst[out++] = ' ';
            i += 3;
        } else {
            dst[out++] = s.s[i++];
        }
    }
    return out;
}

/* "<0x0A>" -> 10, or -1. */
static int byte_token_value(sheaf_str s) {
    if (s.n != 6 || memcmp(s.s, "<0x", 3) != 0 || s.s[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = s.s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static const char KEY_TOKENS[] = "tokenizer.ggml.tokens";
static const char KEY_TYPES[] = "tokenizer.ggml.token_type";
static const char KEY_SCORES[] = "tokenizer.ggml.scores";
static const char KEY_MERGES[] = "tokenizer.ggml.merges";

/* How many tokens, and that the parallel arrays agree. */
static sheaf_status check_arrays(sheaf_tokenizer *t, const sheaf_gguf *g, bool *types, bool *scores) {
    sheaf_gguf_type element;
    int64_t n, other;
    sheaf_status s = sheaf_gguf_array(g, KEY_TOKENS, &element, &n);
    if (s) return s;
    if (element != SHEAF_GGUF_STRING || n < 1 || n > INT32_MAX / 2)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: not a list of 1 to 2^30 strings (%lld entries)", KEY_TOKENS,
                          (long long)n);
    t->n_tokens = (int32_t)n;
    *types = sheaf_gguf_find(g, KEY_TYPES) >= 0;
    *scores = sheaf_gguf_find(g, KEY_SCORES) >= 0;
    if (*types) {
        if ((s = sheaf_gguf_array(g, KEY_TYPES, &element, &other))) return s;
        if (other != n)
            return sheaf_fail(SHEAF_E_FORMAT, "%s: %lld entries for %lld tokens", KEY_TYPES, (long long)other,
                              (long long)n);
    }
    if (*scores) {
        if ((s = sheaf_gguf_array(g, KEY_SCORES, &element, &other))) return s;
        if (other != n)
            return sheaf_fail(SHEAF_E_FORMAT, "%s: %lld entries for %lld tokens", KEY_SCORES, (long long)other,
                              (long long)n);
    } else if (t->spm) {
        return sheaf_fail(SHEAF_E_FORMAT, "%s: absent, and a SentencePiece vocabulary needs it", KEY_SCORES);
    }
    return SHEAF_OK;
}

/* Writes the text of one token to the pool, as it appears in text. */
static void decode_text(sheaf_tokenizer *t, const int16_t *byte_of, token *tok, sheaf_str raw) {
    char *dst = t->pool + t->pool_n;
    size_t n = raw.n;
    bool ordinary = tok->type == SHEAF_TOKEN_NORMAL || tok->type == SHEAF_TOKEN_UNUSED;
    int byte = tok->type == SHEAF_TOKEN_BYTE ? byte_token_value(raw) : -1;
    if (byte >= 0) {
        dst[0] = (char)byte;
        n = 1;
    } else if (t->spm) {
        n = spaces_decode(raw, dst);
    } else if (!ordinary || !byte_level_decode(byte_of, raw, dst, &n)) {
        n = raw.n;
        memcpy(dst, raw.s, n);
    }
    tok->text = dst;
    tok->n = (uint32_t)n;
    t->pool_n += n;
}

static sheaf_status read_tokens(sheaf_tokenizer *t, const sheaf_gguf *g, bool types, bool scores) {
    int16_t byte_of[BYTE_CODE_POINTS];
    byte_level_table(byte_of);
    size_t bytes = 1;
    sheaf_str raw;
    sheaf_status s;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        if ((s = sheaf_gguf_array_str(g, KEY_TOKENS, i, &raw))) return s;
        if (raw.n > UINT32_MAX / 4 || sheaf_add_overflow(bytes, raw.n, &bytes))
            return sheaf_fail(SHEAF_E_FORMAT, "%s: token %d has %zu bytes", KEY_TOKENS, i, raw.n);
    }
    t->tokens = sheaf_calloc((size_t)t->n_tokens, sizeof(token));
    t->pool = sheaf_malloc(bytes);
    if (!t->tokens || !t->pool) return sheaf_fail(SHEAF_E_NO_MEMORY, "vocabulary of %d tokens", t->n_tokens);
    for (int32_t i = 0; i < t->n_tokens; i++) {
        token *tok = &t->tokens[i];
        int64_t type = SHEAF_TOKEN_NORMAL;
        if (types && (s = sheaf_gguf_array_i64(g, KEY_TYPES, i, &type))) return s;
        if (type < SHEAF_TOKEN_NONE || type > SHEAF_TOKEN_BYTE)
            return sheaf_fail(SHEAF_E_FORMAT, "%s: token %d is of type %lld", KEY_TYPES, i, (long long)type);
        tok->type = (uint8_t)(type ? type : SHEAF_TOKEN_NORMAL);
        if (scores && (s = sheaf_gguf_array_f32(g, KEY_SCORES, i, &tok->score))) return s;
        if (tok->score != tok->score) return sheaf_fail(SHEAF_E_FORMAT, "%s: token %d has no number", KEY_SCORES, i);
        if ((s = sheaf_gguf_array_str(g, KEY_TOKENS, i, &raw))) return s;
        decode_text(t, byte_of, tok, raw);
    }
    return SHEAF_OK;
}

/* --- special ids ------------------------------------------------------------------------------- */

/* Texts that end a generation wherever a vocabulary has them: files often name only one end token. */
static const char *const END_TEXTS[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\xef\xbd\x9c\x65nd\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<reponame>",
    "<|file_sep|>",
};

static bool text_is(const token *tok, const char *s) {
    return tok->n == strlen(s) && memcmp(tok->text, s, tok->n) == 0;
}

/* Texts like <|user|> (with either bar): written by templates only. */
static bool looks_like_marker(const token *tok) {
    static const char wide[] = "<\xef\xbd\x9c";
    if (tok->n < 5 || tok->text[tok->n - 1] != '>') return false;
    return memcmp(tok->text, "<|", 2) == 0 || memcmp(tok->text, wide, 4) == 0;
}

static bool known_end_text(const token *tok) {
    for (size_t i = 0; i < sizeof(END_TEXTS) / sizeof(*END_TEXTS); i++)
        if (text_is(tok, END_TEXTS[i])) return tok->type != SHEAF_TOKEN_NORMAL || looks_like_marker(tok);
    return false;
}

/* An id under a key: absent or all ones means none; one outside the vocabulary is an error. */
static sheaf_status special_id(const sheaf_tokenizer *t, const sheaf_gguf *g, const char *key, int32_t *id) {
    int64_t value;
    if (sheaf_gguf_find(g, key) < 0) return SHEAF_OK;
    sheaf_status s = sheaf_gguf_get_i64(g, key, &value);
    if (s) return s;
    if (value == UINT32_MAX || value == -1) {
        *id = -1;
        return SHEAF_OK;
    }
    if (value < 0 || value >= t->n_tokens)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: id %lld, the vocabulary has %d tokens", key, (long long)value,
                          t->n_tokens);
    *id = (int32_t)value;
    return SHEAF_OK;
}

static sheaf_status read_special_ids(sheaf_tokenizer *t, const sheaf_gguf *g) {
    /* SentencePiece's own numbering, for files that leave it out; byte-level files always say. */
    t->bos = t->spm && t->n_tokens > 2 ? 1 : -1;
    t->eos = t->spm && t->n_tokens > 2 ? 2 : -1;
    t->unknown = t->spm ? 0 : -1;
    t->padding = -1;
    int32_t eot = -1, eom = -1;
    const struct {
        const char *key;
        int32_t *id;
    } rows[] = {
        {"tokenizer.ggml.bos_token_id", &t->bos},
        {"tokenizer.ggml.eos_token_id", &t->eos},
        {"tokenizer.ggml.unknown_token_id", &t->unknown},
        {"tokenizer.ggml.padding_token_id", &t->padding},
        {"tokenizer.ggml.eot_token_id", &eot},
        {"tokenizer.ggml.eom_token_id", &eom},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        sheaf_status s = special_id(t, g, rows[i].key, rows[i].id);
        if (s) return s;
    }
    const int32_t named[] = {t->eos, eot, eom};
    for (size_t i = 0; i < 3; i++)
        if (named[i] >= 0) t->tokens[named[i]].end = true;
    return SHEAF_OK;
}

/* Marks the ends, and makes control tokens of user-defined ones that only a template may write:
 * files exist in which "</s>" is user-defined, and user-defined tokens are found in any text. */
static sheaf_status mark_ends(sheaf_tokenizer *t) {
    for (int32_t i = 0; i < t->n_tokens; i++) {
        token *tok = &t->tokens[i];
        if (!tok->end && known_end_text(tok)) tok->end = true;
        if (tok->end) t->n_ends++;
        if (tok->type == SHEAF_TOKEN_USER_DEFINED && (tok->end || looks_like_marker(tok)))
            tok->type = SHEAF_TOKEN_CONTROL;
    }
    t->ends = sheaf_malloc((t->n_ends + 1) * sizeof(int32_t));
    if (!t->ends) return sheaf_fail(SHEAF_E_NO_MEMORY, "list of %zu end tokens", t->n_ends);
    size_t n = 0;
    for (int32_t i = 0; i < t->n_tokens; i++)
        if (t->tokens[i].end) t->ends[n++] = i;
    return SHEAF_OK;
}

/* --- tables over tokens ------------------------------------------------------------------------ */

static sheaf_status index_tokens(sheaf_tokenizer *t) {
    /* The address differs from run to run; results do not depend on it. */
    sheaf_status s = text_map_new(&t->plain, (size_t)t->n_tokens, mix((uint64_t)(uintptr_t)t));
    if (s) return s;
    for (int b = 0; b < 256; b++) t->byte_id[b] = -1;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        const token *tok = &t->tokens[i];
        bool byte = t->spm ? tok->type == SHEAF_TOKEN_BYTE : tok->type == SHEAF_TOKEN_NORMAL;
        if (byte && tok->n == 1 && t->byte_id[(uint8_t)tok->text[0]] < 0) t->byte_id[(uint8_t)tok->text[0]] = i;
        if (tok->n == 0 || (tok->type != SHEAF_TOKEN_NORMAL && tok->type != SHEAF_TOKEN_UNUSED)) continue;
        text_map_add(t, &t->plain, i);
        if (tok->n > t->longest) t->longest = tok->n;
    }
    return SHEAF_OK;
}

/* Phi-3's added tokens swallow the white space behind them; GGUF has no key that says so. */
static sheaf_status mark_rstrip(sheaf_tokenizer *t, const sheaf_gguf *g) {
    sheaf_str arch = {"", 0};
    if (sheaf_gguf_find(g, "general.architecture") < 0) return SHEAF_OK;
    sheaf_status s = sheaf_gguf_get_str(g, "general.architecture", &arch);
    if (s) return s;
    if (arch.n != 4 || memcmp(arch.s, "phi3", 4) != 0 || !t->spm) return SHEAF_OK;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        token *tok = &t->tokens[i];
        tok->rstrip = tok->type == SHEAF_TOKEN_CONTROL && !text_is(tok, "<s>") && !text_is(tok, "<|endoftext|>");
    }
    return SHEAF_OK;
}

sheaf_status vocab_load(sheaf_tokenizer *t, const sheaf_gguf *g) {
    bool types = false, scores = false;
    sheaf_status s = check_arrays(t, g, &types, &scores);
    if (!s) s = read_tokens(t, g, types, scores);
    if (!s) s = read_special_ids(t, g);
    if (!s) s = mark_ends(t);
    if (!s) s = mark_rstrip(t, g);
    if (!s) s = index_tokens(t);
    return s;
}

/* --- merges ------------------------------------------------------------------------------------ */

/* One line "left right" of the merge list, as ids; false where a part is no token of the vocabulary. */
static bool parse_merge(const sheaf_tokenizer *t, const int16_t *byte_of, sheaf_str line, char *buf, merge *m) {
    const char *space = line.n > 1 ? memchr(line.s + 1, ' ', line.n - 1) : NULL;
    if (!space) return false;
    sheaf_str part[2] = {{line.s, (size_t)(space - line.s)}, {space + 1, line.n - (size_t)(space - line.s) - 1}};
    size_t n[2];
    if (!byte_level_decode(byte_of, part[0], buf, &n[0])) return false;
    if (!byte_level_decode(byte_of, part[1], buf + n[0], &n[1])) return false;
    m->left = text_map_find(t, &t->plain, buf, n[0]);
    m->right = text_map_find(t, &t->plain, buf + n[0], n[1]);
    m->joined = text_map_find(t, &t->plain, buf, n[0] + n[1]);
    return m->left >= 0 && m->right >= 0 && m->joined >= 0;
}

static void merge_map_add(merge_map *m, const merge *e) {
    size_t i = hash_pair(m->seed, e->left, e->right) & m->mask;
    for (; m->slots[i]; i = (i + 1) & m->mask) {
        const merge *other = &m->merges[m->slots[i] - 1];
        if (other->left == e->left && other->right == e->right) return;
    }
    m->merges[m->n] = *e;
    m->slots[i] = ++m->n;
}

sheaf_status vocab_load_merges(sheaf_tokenizer *t, const sheaf_gguf *g) {
    sheaf_gguf_type element;
    int64_t n, skipped = 0;
    sheaf_status s = sheaf_gguf_array(g, KEY_MERGES, &element, &n);
    if (s) return s;
    if (element != SHEAF_GGUF_STRING || n > INT32_MAX / 2)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: not a list of strings", KEY_MERGES);
    size_t slots = slots_for((size_t)n), longest = 0;
    t->merges.slots = sheaf_calloc(slots, sizeof(uint32_t));
    t->merges.merges = sheaf_malloc(((size_t)n + 1) * sizeof(merge));
    t->merges.mask = slots - 1;
    t->merges.seed = t->plain.seed;
    sheaf_str line;
    for (int64_t i = 0; i < n; i++) {
        if ((s = sheaf_gguf_array_str(g, KEY_MERGES, i, &line))) return s;
        if (line.n > longest) longest = line.n;
    }
    char *buf = sheaf_malloc(longest + 1);
    if (!t->merges.slots || !t->merges.merges || !buf) {
        sheaf_free(buf);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "%lld merges", (long long)n);
    }
    int16_t byte_of[BYTE_CODE_POINTS];
    byte_level_table(byte_of);
    for (int64_t i = 0; i < n && !s; i++) {
        merge m;
        s = sheaf_gguf_array_str(g, KEY_MERGES, i, &line);
        if (!s && parse_merge(t, byte_of, line, buf, &m))
            merge_map_add(&t->merges, &m);
        else
            skipped++;
    }
    sheaf_free(buf);
    if (!s && skipped)
        sheaf_log(SHEAF_LOG_WARN, "tokenizer: %lld of %lld merges join no tokens of the vocabulary", (long long)skipped,
                  (long long)n);
    return s;
}

void vocab_free(sheaf_tokenizer *t) {
    sheaf_free(t->merges.slots);
    sheaf_free(t->merges.merges);
    sheaf_free(t->plain.slots);
    sheaf_free(t->special);
    sheaf_free(t->ends);
    sheaf_free(t->tokens);
    sheaf_free(t->pool);
}
