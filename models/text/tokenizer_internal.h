/* What the files of the tokenizer share. One tokenizer is one vocabulary plus the tables that make
 * lookups constant time; everything below is written while loading and only read afterwards. */
#ifndef SHEAF_MODELS_TOKENIZER_INTERNAL_H
#define SHEAF_MODELS_TOKENIZER_INTERNAL_H

#include "models/text/text.h"

/* --- the vocabulary (vocab.c) ------------------------------------------------------------------ */

typedef struct token {
    const char *text; /* bytes as they appear in text: byte-level and U+2581 undone; in `pool` */
    uint32_t n;
    uint8_t type; /* sheaf_token_type */
    bool end;     /* generation ends here */
    bool rstrip;  /* white space after it belongs to it (Phi-3) */
    float score;  /* SPM: higher merges first */
} token;

/* Open addressing over token ids; a key is a token's text. Seeded, so that a hostile file cannot
 * choose its collisions. */
typedef struct text_map {
    int32_t *slots; /* -1: free */
    size_t mask;
    uint64_t seed;
} text_map;

/* Merge `rank` joins the tokens left and right into `joined`; lower ranks go first. */
typedef struct merge {
    int32_t left, right, joined;
} merge;

typedef struct merge_map {
    uint32_t *slots; /* rank + 1; 0: free */
    size_t mask;
    uint64_t seed;
    merge *merges;
    uint32_t n;
} merge_map;

struct pre_split;

struct sheaf_tokenizer {
    token *tokens;
    int32_t n_tokens;
    uint32_t longest; /* bytes of the longest plain token */
    char *pool;
    size_t pool_n;

    text_map plain;   /* what ordinary text may become: never control, unknown or byte tokens */
    int32_t *special; /* the others and the user-defined ones, sorted by text, for special.c */
    size_t n_special;
    bool special_first[256]; /* does any special token begin with this byte? */

    bool spm;
    bool add_space_prefix, add_bos, add_eos;
    int32_t bos, eos, unknown, padding;
    int32_t *ends;
    size_t n_ends;
    int32_t byte_id[256]; /* the token of one raw byte; -1: none */

    merge_map merges;      /* BPE */
    struct pre_split *pre; /* BPE: how text is cut into words */
};

int32_t text_map_find(const sheaf_tokenizer *t, const text_map *m, const char *s, size_t n);
/* Result of joining two tokens: rank, or UINT32_MAX. */
uint32_t merge_map_find(const merge_map *m, int32_t left, int32_t right);

/* Loads tokens, types, scores and the special ids / merges of a BPE vocabulary. */
sheaf_status vocab_load(sheaf_tokenizer *t, const sheaf_gguf *g);
sheaf_status vocab_load_merges(sheaf_tokenizer *t, const sheaf_gguf *g);
void vocab_free(sheaf_tokenizer *t);

/* --- cutting text into words (pretokenize.c) ------------------------------------------------- */

typedef struct pre_traits {
    bool ignore_merges; /* a word that is a token is that token, whatever the merges say */
    bool add_bos;       /* when the file does not say */
    bool nfc;           /* text is normalised first */
} pre_traits;

/* SHEAF_E_UNSUPPORTED: no family of this name. */
sheaf_status pre_split_new(const char *name, struct pre_split **out);
void pre_split_free(struct pre_split *p);
const pre_traits *pre_split_traits(const struct pre_split *p);
const char *pre_split_name(const struct pre_split *p);

typedef sheaf_status (*word_fn)(void *ctx, const char *word, size_t n);
/* Cuts n bytes of text and calls `fn` for each word, in order, nothing left out. */
sheaf_status pre_split_run(const struct pre_split *p, const char *text, size_t n, word_fn fn, void *ctx);

/* NFC of `text` into memory that the caller frees; *out NULL: it is in that form already. */
sheaf_status text_nfc(const char *text, size_t n, char **out, size_t *out_n);

/* --- special tokens in text (special.c) -------------------------------------------------------- */

sheaf_status special_build(sheaf_tokenizer *t);
/* The longest special token that `s` begins with, among those allowed: user-defined ones always,
 * control ones where `control`. -1: none. */
int32_t special_match(const sheaf_tokenizer *t, const char *s, size_t n, bool control);

/* --- merging (bpe.c, spm.c): append the ids of one stretch of plain text ------------------------ */

/* Memory that one sheaf_tokenize call reuses from word to word. */
typedef struct merge_work {
    void *symbols, *heap;
    size_t symbol_bytes, heap_bytes;
} merge_work;

void merge_work_free(merge_work *w);
/* Makes *p at least `need` bytes, keeping what is there. */
sheaf_status work_reserve(void **p, size_t *have, size_t need);

sheaf_status bpe_word(const sheaf_tokenizer *t, merge_work *w, const char *word, size_t n, sheaf_ids *out);
sheaf_status spm_text(const sheaf_tokenizer *t, merge_work *w, const char *text, size_t n, bool prefix, sheaf_ids *out);
/* One byte that no token covers: its byte token, else unknown, else SHEAF_E_UNSUPPORTED. */
sheaf_status byte_fallback(const sheaf_tokenizer *t, uint8_t byte, sheaf_ids *out);

#endif
