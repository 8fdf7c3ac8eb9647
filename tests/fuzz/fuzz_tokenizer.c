/* Fuzzes tokenizers: the input is text (its first byte chooses flags) for a byte-level and a
 * SentencePiece vocabulary made at the start; ids must be in range and text must come back. */
#include "models/text/text.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/gguf_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 600 };

static void spell_byte(int byte, char out[4]) {
    int c = byte, next = 256;
    for (int b = 0; b <= byte; b++) {
        bool self = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte && !self) c = next;
        next += !self;
    }
    snprintf(out, 4, c < 0x80 ? "%c" : "%c%c", c < 0x80 ? c : 0xc0 | c >> 6, 0x80 | (c & 63));
}

static sheaf_tokenizer *make(const char *model, const char *pre) {
    static char text[MAX_TOKENS][8];
    static const char *const extra[] = {"<s>", "</s>", "<|im_end|>", "ab", "abc", "  ", "e"};
    const char *tokens[MAX_TOKENS], *merges[] = {"a b", "ab c", "\xc4\xa0 \xc4\xa0"};
    int32_t types[MAX_TOKENS], n = 0;
    float scores[MAX_TOKENS];
    bool spm = strcmp(model, "llama") == 0;
    for (int b = 0; b < 256; b++, n++) {
        if (spm)
            snprintf(text[n], sizeof(text[n]), "<0x%02X>", b);
        else
            spell_byte(b, text[n]);
        tokens[n] = text[n];
        types[n] = spm ? 6 : 1;
    }
    for (size_t i = 0; i < sizeof(extra) / sizeof(*extra); i++, n++) {
        tokens[n] = i == 5 && !spm ? "\xc4\xa0\xc4\xa0" : extra[i];
        types[n] = i < 3 ? 3 : 1;
    }
    for (int i = 0; i < n; i++) scores[i] = (float)-i;
    gguf_build *b = gguf_build_new();
    gguf_build_str(b, "tokenizer.ggml.model", model);
    gguf_build_str(b, "tokenizer.ggml.pre", pre);
    gguf_build_strs(b, "tokenizer.ggml.tokens", tokens, n);
    gguf_build_array(b, "tokenizer.ggml.token_type", SHEAF_GGUF_I32, types, n);
    gguf_build_array(b, "tokenizer.ggml.scores", SHEAF_GGUF_F32, scores, n);
    gguf_build_strs(b, "tokenizer.ggml.merges", merges, 3);
    size_t size;
    sheaf_gguf *g;
    sheaf_tokenizer *t;
    const uint8_t *bytes = gguf_build_bytes(b, &size);
    if (sheaf_gguf_open_memory(bytes, size, &g) || sheaf_tokenizer_new(g, NULL, &t)) {
        fprintf(stderr, "%s\n", sheaf_error());
        abort();
    }
    sheaf_gguf_close(g);
    gguf_build_free(b);
    return t;
}

static void check(const sheaf_tokenizer *t, const char *text, size_t n, unsigned flags) {
    sheaf_ids ids = {0};
    size_t need;
    if (sheaf_tokenize(t, text, n, flags, &ids)) abort();
    for (size_t i = 0; i < ids.n; i++)
        if (ids.v[i] < 0 || ids.v[i] >= sheaf_tokenizer_size(t)) abort();
    bool control = false;
    for (size_t i = 0; i < ids.n; i++) control |= sheaf_token_type_of(t, ids.v[i]) == SHEAF_TOKEN_CONTROL;
    if (control && flags == 0) abort(); /* plain text became a control token */
    char *back = malloc(n + 64);
    bool folds = memmem(text, n, "\xe2\x96\x81", 3) != NULL; /* the one thing that is not kept */
    sheaf_status s = sheaf_detokenize(t, ids.v, ids.n, false, back, n + 64, &need);
    if (flags == 0 && !folds && (s || need != n || memcmp(back, text, n))) abort();
    free(back);
    sheaf_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sheaf_tokenizer *t[5];
    static const char *const pre[] = {"gpt-2", "llama-bpe", "falcon", "tekken"};
    for (int i = 0; i < 5; i++)
        if (!t[i]) t[i] = i < 4 ? make("gpt2", pre[i]) : make("llama", "default");
    if (size == 0) return 0;
    for (int i = 0; i < 5; i++) check(t[i], (const char *)data + 1, size - 1, data[0] & 3);
    return 0;
}
