/* From text to token ids and back: tokenizers, whole characters in a stream, stop strings, and the
 * chat template that turns a conversation into a prompt.
 *
 * Nouns: a *tokenizer* (the vocabulary of one GGUF file; immutable, any number of threads), *ids* (a
 * growing list of token ids that the caller owns), a *stream* (bytes in, whole characters out), a
 * *stop matcher*, a *template* (a parsed chat template; immutable) and a *rendered* text (bytes, and
 * for every byte whether the template or the conversation wrote it).
 *
 *     sheaf_tokenizer *t;  sheaf_ids ids = {0};
 *     s = sheaf_tokenizer_new(gguf, NULL, &t);
 *     s = sheaf_tokenize(t, "Hello", 5, SHEAF_TOKENIZE_ADD_SPECIAL, &ids);
 *     for (size_t i = 0; i < ids.n; i++) { sheaf_str p = sheaf_token_piece(t, ids.v[i], false); ... }
 *     sheaf_ids_free(&ids);  sheaf_tokenizer_free(t);
 *
 * Text of a user never becomes a control token unless the caller asks (SHEAF_TOKENIZE_PARSE_SPECIAL);
 * in a rendered chat only the template's own bytes may (case H05).
 */
#ifndef SHEAF_MODELS_TEXT_H
#define SHEAF_MODELS_TEXT_H

#include "tensor/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- ids ------------------------------------------------------------------------------------- */

typedef struct sheaf_ids {
    int32_t *v;
    size_t n, capacity;
} sheaf_ids;

/* Adds `n` ids at the end: SHEAF_E_NO_MEMORY leaves the list as it was. */
SHEAF_API sheaf_status sheaf_ids_append(sheaf_ids *ids, const int32_t *v, size_t n);
SHEAF_API void sheaf_ids_free(sheaf_ids *ids); /* and zeroes it; zeroed is fine */

/* --- tokenizer ------------------------------------------------------------------------------- */

typedef struct sheaf_tokenizer sheaf_tokenizer;

/* GGUF's numbers of token types. */
typedef enum sheaf_token_type {
    SHEAF_TOKEN_NONE = 0, /* not an id of this vocabulary */
    SHEAF_TOKEN_NORMAL = 1,
    SHEAF_TOKEN_UNKNOWN = 2,
    SHEAF_TOKEN_CONTROL = 3,
    SHEAF_TOKEN_USER_DEFINED = 4,
    SHEAF_TOKEN_UNUSED = 5,
    SHEAF_TOKEN_BYTE = 6,
} sheaf_token_type;

typedef struct sheaf_tokenizer_options {
    const char *pre; /* forces this pre-tokenizer family (a value of tokenizer.ggml.pre); NULL: the file's */
    bool force;      /* a family that is absent or not known is taken for "default", with a warning, not refused */
} sheaf_tokenizer_options;

/* Reads the vocabulary of `g` (which may be closed afterwards). `opts` may be NULL.
 * SHEAF_E_NOT_FOUND: no vocabulary in the file; SHEAF_E_FORMAT: one that contradicts itself;
 * SHEAF_E_UNSUPPORTED: a tokenizer model or pre-tokenizer family that is not known, by name. */
SHEAF_API sheaf_status sheaf_tokenizer_new(const sheaf_gguf *g, const sheaf_tokenizer_options *opts,
                                           sheaf_tokenizer **out);
SHEAF_API void sheaf_tokenizer_free(sheaf_tokenizer *t); /* NULL is fine */

enum sheaf_tokenize_flag {
    SHEAF_TOKENIZE_ADD_SPECIAL = 1 << 0,   /* BOS before and EOS after, where the file says so */
    SHEAF_TOKENIZE_PARSE_SPECIAL = 1 << 1, /* text such as "<|im_end|>" becomes the control token */
};

/* Appends the ids of `text` (n bytes, NULs and invalid UTF-8 allowed: bytes that are no character
 * are pieces of their own) to `out`. Time n log n, stack constant. With PARSE_SPECIAL a text that
 * begins with BOS gets no second one. SHEAF_E_RANGE: 2 GiB or more; SHEAF_E_NO_MEMORY;
 * SHEAF_E_UNSUPPORTED: a byte that the vocabulary cannot express. On error `out` is as it was. */
SHEAF_API sheaf_status sheaf_tokenize(const sheaf_tokenizer *t, const char *text, size_t n, unsigned flags,
                                      sheaf_ids *out);
/* The same into the caller's array: *count is the number of ids of the text whatever `capacity`;
 * SHEAF_E_RANGE if they do not fit (nothing is written then). ids may be NULL if capacity is 0. */
SHEAF_API sheaf_status sheaf_tokenize_into(const sheaf_tokenizer *t, const char *text, size_t n, unsigned flags,
                                           int32_t *ids, size_t capacity, size_t *count);

/* The bytes of one token; valid as long as the tokenizer. Control and unknown tokens are "" unless
 * `special`; so is an id outside the vocabulary. A piece may be part of a character (sheaf_stream). */
SHEAF_API sheaf_str sheaf_token_piece(const sheaf_tokenizer *t, int32_t id, bool special);
/* Bytes of a whole list, and the inverse of sheaf_tokenize: the spaces that a SentencePiece vocabulary
 * puts before a text are taken off. *need is the full length; SHEAF_E_RANGE if it exceeds `capacity`
 * (the first `capacity` bytes are written). No NUL is added. */
SHEAF_API sheaf_status sheaf_detokenize(const sheaf_tokenizer *t, const int32_t *ids, size_t n, bool special, char *buf,
                                        size_t capacity, size_t *need);

SHEAF_API int32_t sheaf_tokenizer_size(const sheaf_tokenizer *t);      /* ids are [0, size) */
SHEAF_API const char *sheaf_tokenizer_model(const sheaf_tokenizer *t); /* "spm" or "bpe" */
SHEAF_API const char *sheaf_tokenizer_pre(const sheaf_tokenizer *t);   /* family in use; "" for spm */
SHEAF_API sheaf_token_type sheaf_token_type_of(const sheaf_tokenizer *t, int32_t id);
SHEAF_API int32_t sheaf_tokenizer_bos(const sheaf_tokenizer *t); /* -1: none (all four) */
SHEAF_API int32_t sheaf_tokenizer_eos(const sheaf_tokenizer *t);
SHEAF_API int32_t sheaf_tokenizer_unknown(const sheaf_tokenizer *t);
SHEAF_API int32_t sheaf_tokenizer_padding(const sheaf_tokenizer *t);
SHEAF_API bool sheaf_tokenizer_adds_bos(const sheaf_tokenizer *t);
SHEAF_API bool sheaf_tokenizer_adds_eos(const sheaf_tokenizer *t);
/* Does generation end here? eos, eot, eom, and the end markers known by their text (case H06). */
SHEAF_API bool sheaf_token_is_end(const sheaf_tokenizer *t, int32_t id);
/* All of them in ascending order (to forbid them under --ignore-eos). */
SHEAF_API const int32_t *sheaf_tokenizer_ends(const sheaf_tokenizer *t, size_t *n);
/* The id whose own text is exactly this, special ones included; -1: none. */
SHEAF_API int32_t sheaf_tokenizer_find(const sheaf_tokenizer *t, const char *text, size_t n);

/* --- UTF-8 ----------------------------------------------------------------------------------- */

/* Length 1..4 of the well-formed character at `s` (n bytes follow), or 0: ill-formed, or cut short
 * (*cut then, if asked: more bytes could still complete it). */
SHEAF_API size_t sheaf_utf8_char(const char *s, size_t n, bool *cut);
/* Is all of it well-formed? If not, *at is the offset of the first bad byte. */
SHEAF_API bool sheaf_utf8_valid(const char *s, size_t n, size_t *at);

/* Bytes in, whole characters out (case F04). A value: zeroed is ready; it owns nothing. */
typedef struct sheaf_stream {
    char held[4]; /* the start of a character whose rest has not come */
    uint8_t n;
} sheaf_stream;

/* Room that sheaf_stream_push needs at most for n bytes: every byte may become U+FFFD. */
#define SHEAF_STREAM_ROOM(n) (3 * ((size_t)(n) + 3))
/* Takes n bytes, writes the whole characters that are now complete to `out` (SHEAF_STREAM_ROOM(n)
 * bytes) and returns how many bytes. Each maximal ill-formed part becomes one U+FFFD. */
SHEAF_API size_t sheaf_stream_push(sheaf_stream *st, const char *bytes, size_t n, char *out);
/* The end: what is still held becomes one U+FFFD (3 bytes) or nothing. */
SHEAF_API size_t sheaf_stream_end(sheaf_stream *st, char *out);

/* --- stop strings ---------------------------------------------------------------------------- */

/* Finds the earliest stop string across pieces; holds back what may still become one (case F05). */
typedef struct sheaf_stops sheaf_stops;

/* Copies the strings; empty ones are refused (SHEAF_E_ARGUMENT). count 0 never stops. */
SHEAF_API sheaf_status sheaf_stops_new(const sheaf_str *stops, size_t count, sheaf_stops **out);
SHEAF_API void sheaf_stops_free(sheaf_stops *m);
/* Takes a piece; *text is what may be shown now (valid until the next call), *hit whether a stop
 * string ended the text: then *text ends right before it and later pushes give nothing. When several
 * match, the one that begins first wins. */
SHEAF_API sheaf_status sheaf_stops_push(sheaf_stops *m, const char *piece, size_t n, sheaf_str *text, bool *hit);
/* The end of the text: what was held back, cut at a stop string that it contains whole (*hit). */
SHEAF_API sheaf_str sheaf_stops_end(sheaf_stops *m, bool *hit);
SHEAF_API void sheaf_stops_reset(sheaf_stops *m); /* for the next reply */

/* --- chat templates -------------------------------------------------------------------------- */

typedef struct sheaf_template sheaf_template;

/* Parses a Jinja template. What the renderer does not know is refused here where the syntax shows
 * it, else while rendering: SHEAF_E_UNSUPPORTED with construct and line; SHEAF_E_FORMAT: not Jinja. */
SHEAF_API sheaf_status sheaf_template_new(const char *source, size_t n, sheaf_template **out);
SHEAF_API void sheaf_template_free(sheaf_template *t);

typedef struct sheaf_message {
    sheaf_str role, content;
} sheaf_message;

typedef struct sheaf_chat {
    const sheaf_message *messages;
    size_t n_messages;
    bool add_generation_prompt;
    sheaf_str bos_token, eos_token; /* texts; written by the template, so they are its own */
    const char *now;                /* for strftime_now: seconds since 1970 as text; NULL: the clock */
    /* A JSON object whose members become variables ("tools", "enable_thinking", or "messages" with
     * tool calls, which then replaces the array above). NULL: none. Its strings count as input. */
    const char *json;
    size_t json_n;
} sheaf_chat;

typedef struct sheaf_span {
    size_t begin, end;
} sheaf_span;

/* The prompt, and the spans of it that came from the conversation (ascending, not touching). */
typedef struct sheaf_rendered {
    char *text; /* NUL-terminated for convenience; n does not count it */
    size_t n;
    sheaf_span *input;
    size_t n_input;
} sheaf_rendered;

/* Renders. Bounded: steps, output and memory (SHEAF_E_RANGE names which). A template's own
 * raise_exception is SHEAF_E_FORMAT with its text. Frees nothing of the caller's; *out is the caller's. */
SHEAF_API sheaf_status sheaf_template_render(const sheaf_template *t, const sheaf_chat *chat, sheaf_rendered *out);
SHEAF_API void sheaf_rendered_free(sheaf_rendered *r);

/* The ids of a rendered chat: control tokens only from the template's own bytes; one BOS if the
 * template wrote one or the file asks for it, never two; no EOS (case H03). */
SHEAF_API sheaf_status sheaf_tokenize_rendered(const sheaf_tokenizer *t, const sheaf_rendered *r, sheaf_ids *out);

#ifdef __cplusplus
}
#endif
#endif
