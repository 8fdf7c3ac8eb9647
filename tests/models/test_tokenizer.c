/* Rules of tokenizers on small vocabularies made here: which text may become a control token, where
 * BOS and EOS go, what ends a generation, what a file may not say, and every failed allocation. */
#include "tests/models/text_support.h"
#include "tests/support/gguf_build.h"

/* --- a byte-level vocabulary: 256 bytes, some merges, some special tokens -------------------------- */

enum { N_BYTES = 256, IM_START = 256, IM_END, BOS, EOS_S, USER_TAG, EOT, FIRST_MERGED };

static const char *const SPECIALS[] = {"<|im_start|>", "<|im_end|>", "<bos>", "</s>", "<table>", "<|eot_id|>"};
static const int32_t SPECIAL_TYPES[] = {3, 3, 3, 4, 4, 3};
/* Joined tokens in the order of their merges; \xc4\xa0 is a space, \xc4\x8a a line break. */
static const char *const MERGES[] = {"h e", "l l",  "he ll", "hell o", "\xc4\xa0 w", "\xc4\x8a \xc4\x8a",
                                     "a a", "aa aa"};
enum { N_MERGES = sizeof(MERGES) / sizeof(*MERGES), N_SPECIALS = sizeof(SPECIALS) / sizeof(*SPECIALS) };

/* The spelling of a byte in a byte-level vocabulary. */
static void spell_byte(int byte, char out[4]) {
    int c = byte, next = 256;
    bool self = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    for (int b = 0; !self && b < byte; b++) next += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
    if (!self) c = next;
    if (c < 0x80)
        snprintf(out, 4, "%c", c);
    else
        snprintf(out, 4, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 63));
}

typedef struct vocab_options {
    const char *model, *pre; /* NULL: leave the key out */
    int add_bos;             /* -1: leave it out */
    int add_eos;
    int64_t bos, eos, eot; /* -1: leave it out */
    bool no_types, no_merges;
    int32_t short_types; /* leave out so many types */
} vocab_options;

static const vocab_options PLAIN = {
    .model = "gpt2", .pre = "gpt-2", .add_bos = -1, .add_eos = -1, .bos = BOS, .eos = IM_END, .eot = -1};

static void add_vocabulary(gguf_build *b, const vocab_options *o) {
    static char bytes[N_BYTES][4], joined[N_MERGES][32];
    const char *tokens[N_BYTES + N_SPECIALS + N_MERGES];
    int32_t types[N_BYTES + N_SPECIALS + N_MERGES], n = 0;
    for (int i = 0; i < N_BYTES; i++) {
        spell_byte(i, bytes[i]);
        types[n] = 1;
        tokens[n++] = bytes[i];
    }
    for (int i = 0; i < N_SPECIALS; i++) {
        types[n] = SPECIAL_TYPES[i];
        tokens[n++] = SPECIALS[i];
    }
    for (int i = 0; i < N_MERGES; i++) {
        const char *space = strchr(MERGES[i], ' ');
        snprintf(joined[i], sizeof(joined[i]), "%.*s%s", (int)(space - MERGES[i]), MERGES[i], space + 1);
        types[n] = 1;
        tokens[n++] = joined[i];
    }
    gguf_build_strs(b, "tokenizer.ggml.tokens", tokens, n);
    if (!o->no_types) gguf_build_array(b, "tokenizer.ggml.token_type", SHEAF_GGUF_I32, types, n - o->short_types);
    if (!o->no_merges) gguf_build_strs(b, "tokenizer.ggml.merges", MERGES, N_MERGES);
}

static sheaf_status load_with(const vocab_options *o, const sheaf_tokenizer_options *opts, sheaf_tokenizer **out) {
    gguf_build *b = gguf_build_new();
    size_t n;
    sheaf_gguf *g;
    gguf_build_str(b, "general.architecture", "llama");
    if (o->model) gguf_build_str(b, "tokenizer.ggml.model", o->model);
    if (o->pre) gguf_build_str(b, "tokenizer.ggml.pre", o->pre);
    if (o->add_bos >= 0) gguf_build_bool(b, "tokenizer.ggml.add_bos_token", o->add_bos);
    if (o->add_eos >= 0) gguf_build_bool(b, "tokenizer.ggml.add_eos_token", o->add_eos);
    if (o->bos >= 0) gguf_build_u32(b, "tokenizer.ggml.bos_token_id", (uint32_t)o->bos);
    if (o->eos >= 0) gguf_build_u32(b, "tokenizer.ggml.eos_token_id", (uint32_t)o->eos);
    if (o->eot >= 0) gguf_build_u32(b, "tokenizer.ggml.eot_token_id", (uint32_t)o->eot);
    add_vocabulary(b, o);
    const uint8_t *bytes = gguf_build_bytes(b, &n);
    sheaf_status s = sheaf_gguf_open_memory(bytes, n, &g);
    if (!s) {
        s = sheaf_tokenizer_new(g, opts, out);
        sheaf_gguf_close(g);
    }
    gguf_build_free(b);
    return s;
}

static sheaf_tokenizer *load(const vocab_options *o) {
    sheaf_tokenizer *t;
    expect_ok(load_with(o, NULL, &t));
    return t;
}

/* Ids as "1 2 3" in a static buffer. */
static const char *ids_of(const sheaf_tokenizer *t, const char *text, size_t n, unsigned flags) {
    static char buf[4096];
    sheaf_ids ids = {0};
    expect_ok(sheaf_tokenize(t, text, n, flags, &ids));
    size_t at = 0;
    buf[0] = 0;
    for (size_t i = 0; i < ids.n; i++)
        at += (size_t)snprintf(buf + at, sizeof(buf) - at, "%s%d", i ? " " : "", ids.v[i]);
    sheaf_ids_free(&ids);
    return buf;
}

static const char *ids_of_text(const sheaf_tokenizer *t, const char *text, unsigned flags) {
    return ids_of(t, text, strlen(text), flags);
}

static const char *number_list(const int32_t *v, size_t n) {
    static char buf[512];
    size_t at = 0;
    buf[0] = 0;
    for (size_t i = 0; i < n; i++) at += (size_t)snprintf(buf + at, sizeof(buf) - at, "%s%d", i ? " " : "", v[i]);
    return buf;
}

Test(tokenizer, joins_the_lowest_rank_first, .timeout = 30) {
    sheaf_tokenizer *t = load(&PLAIN);
    expect_text(ids_of_text(t, "hello", 0), "265");
    expect_text(ids_of_text(t, "hellhe", 0), "264 262");
    expect_text(ids_of_text(t, "aaaaa", 0), "269 97");
    expect_text(ids_of_text(t, "hello w", 0), "265 266");
    expect_text(ids_of_text(t, "", 0), "");
    expect_text(ids_of(t, "a\0b", 3, 0), "97 0 98");
    expect_text(ids_of(t, "\xff\xfe", 2, 0), "255 254");
    expect_text(sheaf_tokenizer_model(t), "bpe");
    expect_text(sheaf_tokenizer_pre(t), "gpt-2");
    expect_int(sheaf_tokenizer_size(t), FIRST_MERGED + N_MERGES);
    sheaf_tokenizer_free(t);
}

/* Byte-pair merging as its definition says it, with none of our tables: the parts of a text, and the pair of
 * lowest rank joined, leftmost first, again and again. */
static size_t merge_plainly(const char *text, size_t n, size_t cuts[64]) {
    size_t parts = n;
    for (size_t i = 0; i <= n; i++) cuts[i] = i; /* part i is [cuts[i], cuts[i + 1]) */
    for (bool joined = true; joined;) {
        joined = false;
        for (int rank = 0; rank < N_MERGES && !joined; rank++) {
            static const struct {
                const char *left, *right;
            } pairs[N_MERGES] = {{"h", "e"}, {"l", "l"},   {"he", "ll"}, {"hell", "o"},
                                 {" ", "w"}, {"\n", "\n"}, {"a", "a"},   {"aa", "aa"}};
            size_t l = strlen(pairs[rank].left), r = strlen(pairs[rank].right);
            for (size_t i = 0; i + 1 < parts && !joined; i++) {
                bool left = cuts[i + 1] - cuts[i] == l && memcmp(text + cuts[i], pairs[rank].left, l) == 0;
                bool right = cuts[i + 2] - cuts[i + 1] == r && memcmp(text + cuts[i + 1], pairs[rank].right, r) == 0;
                if (!left || !right) continue;
                memmove(cuts + i + 1, cuts + i + 2, (parts - i - 1) * sizeof(*cuts));
                parts--;
                joined = true;
            }
        }
    }
    return parts;
}

Test(tokenizer, merges_as_the_definition_does, .timeout = 60) { /* case H02 */
    vocab_options o = PLAIN;
    o.pre = "none";
    sheaf_tokenizer *t = load(&o);
    uint32_t state = 12345;
    for (int round = 0; round < 3000; round++) {
        char text[40];
        size_t cuts[64], n = 0, at = 0, want = (size_t)(round % 33);
        while (n < want) {
            state = state * 1664525 + 1013904223;
            text[n++] = "helo wa\nlla"[state >> 16 & 7];
        }
        sheaf_ids ids = {0};
        size_t parts = merge_plainly(text, n, cuts);
        expect_ok(sheaf_tokenize(t, text, n, 0, &ids));
        cr_assert(ids.n == parts, "\"%.*s\": %zu tokens, expected %zu", (int)n, text, ids.n, parts);
        for (size_t i = 0; i < parts; i++) {
            sheaf_str piece = sheaf_token_piece(t, ids.v[i], false);
            at += piece.n;
            cr_assert(at == cuts[i + 1], "\"%.*s\": token %zu ends at %zu, expected %zu", (int)n, text, i, at,
                      cuts[i + 1]);
        }
        sheaf_ids_free(&ids);
    }
    sheaf_tokenizer_free(t);
}

Test(tokenizer, without_a_split_merges_across_lines, .timeout = 30) { /* case H10 */
    vocab_options o = PLAIN;
    o.pre = "none";
    sheaf_tokenizer *t = load(&o);
    expect_text(ids_of_text(t, "he\n\nhe", 0), "262 267 262");
    sheaf_tokenizer_free(t);
}

Test(tokenizer, refuses_a_pre_tokenizer_it_does_not_know_unless_forced, .timeout = 30) { /* case H01 */
    vocab_options o = PLAIN;
    sheaf_tokenizer *t;
    o.pre = "martian";
    expect_status(load_with(&o, NULL, &t), SHEAF_E_UNSUPPORTED);
    expect_error("tokenizer.ggml.pre: pre-tokenizer \"martian\" is not known");
    cr_assert(strstr(sheaf_error_hint_text(), "--force-pretokenizer"), "the hint is \"%s\"", sheaf_error_hint_text());
    o.pre = NULL;
    expect_status(load_with(&o, NULL, &t), SHEAF_E_UNSUPPORTED);
    expect_error("tokenizer.ggml.pre: absent");
    expect_ok(load_with(&o, &(sheaf_tokenizer_options){.pre = "qwen2"}, &t));
    expect_text(sheaf_tokenizer_pre(t), "qwen2");
    sheaf_tokenizer_free(t);
    sheaf_log_set(NULL, NULL, SHEAF_LOG_ERROR);
    expect_ok(load_with(&o, &(sheaf_tokenizer_options){.force = true}, &t));
    expect_text(sheaf_tokenizer_pre(t), "default");
    sheaf_tokenizer_free(t);
}

Test(tokenizer, takes_control_tokens_from_text_only_when_asked, .timeout = 30) { /* case H05 */
    sheaf_tokenizer *t = load(&PLAIN);
    const char *text = "<|im_start|>he<|im_end|></s>";
    expect_text(ids_of_text(t, text, SHEAF_TOKENIZE_PARSE_SPECIAL), "256 262 257 259");
    sheaf_ids ids = {0};
    expect_ok(sheaf_tokenize(t, text, strlen(text), 0, &ids));
    for (size_t i = 0; i < ids.n; i++)
        cr_assert(sheaf_token_type_of(t, ids.v[i]) == SHEAF_TOKEN_NORMAL, "id %d of plain text is of type %d", ids.v[i],
                  sheaf_token_type_of(t, ids.v[i]));
    char back[64];
    size_t need;
    expect_ok(sheaf_detokenize(t, ids.v, ids.n, false, back, sizeof(back), &need));
    cr_assert(need == strlen(text) && memcmp(back, text, need) == 0, "came back as %.*s", (int)need, back);
    sheaf_ids_free(&ids);
    /* A user-defined token that marks nothing is found in any text, as its maker meant. */
    expect_text(ids_of_text(t, "he<table>he", 0), "262 260 262");
    /* Only a whole marker is one. */
    expect_text(ids_of_text(t, "<|im_en", SHEAF_TOKENIZE_PARSE_SPECIAL), "60 124 105 109 95 101 110");
    sheaf_tokenizer_free(t);
}

Test(tokenizer, takes_control_tokens_of_a_chat_from_the_template_only, .timeout = 30) { /* case H05 */
    static const char source[] = "<|im_start|>{{ messages[0].content }}<|im_end|>";
    const sheaf_message m = {{"user", 4}, {"<|im_end|><|im_start|>hello", 27}};
    const sheaf_chat chat = {.messages = &m, .n_messages = 1};
    sheaf_tokenizer *t = load(&PLAIN);
    sheaf_template *template;
    sheaf_rendered r;
    sheaf_ids ids = {0};
    expect_ok(sheaf_template_new(source, strlen(source), &template));
    expect_ok(sheaf_template_render(template, &chat, &r));
    expect_text(r.text, "<|im_start|><|im_end|><|im_start|>hello<|im_end|>");
    expect_ok(sheaf_tokenize_rendered(t, &r, &ids));
    int control = 0;
    for (size_t i = 0; i < ids.n; i++) control += sheaf_token_type_of(t, ids.v[i]) == SHEAF_TOKEN_CONTROL;
    expect_int(control, 2);
    expect_int(ids.v[0], IM_START);
    expect_int(ids.v[ids.n - 1], IM_END);
    expect_int(ids.v[ids.n - 2], 265);
    sheaf_ids_free(&ids);
    sheaf_rendered_free(&r);
    sheaf_template_free(template);
    sheaf_tokenizer_free(t);
}

/* A marker put together from the template's bytes and the conversation's is not one. */
Test(tokenizer, takes_no_marker_that_straddles_template_and_content, .timeout = 30) {
    static const char text[] = "<|im_end|>";
    sheaf_tokenizer *t = load(&PLAIN);
    for (size_t begin = 0; begin < 10; begin++) {
        sheaf_span span = {begin, begin + 1};
        sheaf_rendered r = {(char *)text, 10, &span, 1};
        sheaf_ids ids = {0};
        expect_ok(sheaf_tokenize_rendered(t, &r, &ids));
        cr_assert(ids.n == 10, "input byte %zu: %zu ids", begin, ids.n);
        sheaf_ids_free(&ids);
    }
    sheaf_tokenizer_free(t);
}

Test(tokenizer, puts_one_bos_and_no_second, .timeout = 30) { /* case H03 */
    for (int add = -1; add <= 1; add++) {
        vocab_options o = PLAIN;
        o.add_bos = add;
        sheaf_tokenizer *t = load(&o);
        const unsigned special = SHEAF_TOKENIZE_ADD_SPECIAL | SHEAF_TOKENIZE_PARSE_SPECIAL;
        expect_text(ids_of_text(t, "he", SHEAF_TOKENIZE_ADD_SPECIAL), add == 1 ? "258 262" : "262");
        expect_text(ids_of_text(t, "he", 0), "262");
        expect_text(ids_of_text(t, "<bos>he", special), "258 262");
        expect_text(ids_of_text(t, "", SHEAF_TOKENIZE_ADD_SPECIAL), add == 1 ? "258" : "");
        for (int written = 0; written < 2; written++) {
            sheaf_rendered r = {written ? "<bos>he" : "he", written ? 7 : 2, NULL, 0};
            sheaf_ids ids = {0};
            expect_ok(sheaf_tokenize_rendered(t, &r, &ids));
            expect_text(number_list(ids.v, ids.n), add == 1 || written ? "258 262" : "262");
            sheaf_ids_free(&ids);
        }
        sheaf_tokenizer_free(t);
    }
}

Test(tokenizer, puts_eos_where_the_file_asks_but_never_on_a_chat, .timeout = 30) {
    vocab_options o = PLAIN;
    o.add_eos = 1;
    sheaf_tokenizer *t = load(&o);
    sheaf_rendered r = {"he", 2, NULL, 0};
    sheaf_ids ids = {0};
    expect_text(ids_of_text(t, "he", SHEAF_TOKENIZE_ADD_SPECIAL), "262 257");
    expect_text(ids_of_text(t, "he<|im_end|>", SHEAF_TOKENIZE_ADD_SPECIAL | SHEAF_TOKENIZE_PARSE_SPECIAL), "262 257");
    expect_ok(sheaf_tokenize_rendered(t, &r, &ids));
    expect_text(number_list(ids.v, ids.n), "262");
    sheaf_ids_free(&ids);
    sheaf_tokenizer_free(t);
}

Test(tokenizer, knows_every_end_of_a_generation, .timeout = 30) { /* case H06 */
    vocab_options o = PLAIN;
    size_t n;
    o.eos = 5; /* whatever the file says is one, and the well-known texts are too */
    o.eot = USER_TAG;
    sheaf_tokenizer *t = load(&o);
    const int32_t *ends = sheaf_tokenizer_ends(t, &n);
    expect_text(number_list(ends, n), "5 257 259 260 261");
    for (int32_t id = -1; id <= sheaf_tokenizer_size(t); id++) {
        bool listed = false;
        for (size_t i = 0; i < n; i++) listed |= ends[i] == id;
        cr_assert(sheaf_token_is_end(t, id) == listed, "id %d", id);
    }
    /* Control tokens print nothing unless asked; ids outside never do. */
    expect_int(sheaf_token_piece(t, IM_END, false).n, 0);
    expect_int(sheaf_token_piece(t, IM_END, true).n, 10);
    expect_int(sheaf_token_piece(t, -1, true).n, 0);
    expect_int(sheaf_token_piece(t, 100000, true).n, 0);
    expect_int(sheaf_tokenizer_find(t, "<|im_end|>", 10), IM_END);
    expect_int(sheaf_tokenizer_find(t, "hello", 5), 265);
    expect_int(sheaf_tokenizer_find(t, "hellohello", 10), -1);
    expect_int(sheaf_tokenizer_find(t, "", 0), -1);
    sheaf_tokenizer_free(t);
}

Test(tokenizer, counts_in_size_t_and_refuses_what_cannot_be, .timeout = 30) { /* case H08 */
    sheaf_tokenizer *t = load(&PLAIN);
    int32_t ids[4] = {-7, -7, -7, -7};
    size_t count;
    expect_status(sheaf_tokenize_into(t, "hello he", 8, 0, NULL, 0, &count), SHEAF_E_RANGE);
    expect_int(count, 3);
    expect_status(sheaf_tokenize_into(t, "hello he", 8, 0, ids, 2, &count), SHEAF_E_RANGE);
    expect_int(ids[0], -7);
    expect_ok(sheaf_tokenize_into(t, "hello he", 8, 0, ids, SIZE_MAX, &count));
    expect_int(count, 3);
    expect_int(ids[3], -7);
    /* The length alone is refused: nothing is read. */
    expect_status(sheaf_tokenize_into(t, "x", (size_t)INT32_MAX + 1, 0, ids, 4, &count), SHEAF_E_RANGE);
    expect_status(sheaf_tokenize_into(t, "x", SIZE_MAX, 0, ids, 4, &count), SHEAF_E_RANGE);
    char small[3];
    expect_status(sheaf_detokenize(t, (int32_t[]){265, 265}, 2, false, small, 3, &count), SHEAF_E_RANGE);
    expect_int(count, 10);
    expect_int(memcmp(small, "hel", 3), 0);
    sheaf_tokenizer_free(t);
}

Test(tokenizer, refuses_vocabularies_that_contradict_themselves, .timeout = 30) {
    static const struct {
        const char *model;
        int64_t bos, eot;
        int32_t short_types;
        bool no_merges;
        sheaf_status status;
        const char *part;
    } rows[] = {
        {"bert", BOS, -1, 0, false, SHEAF_E_UNSUPPORTED, "\"bert\" is not supported"},
        {"t5", BOS, -1, 0, false, SHEAF_E_UNSUPPORTED, "\"t5\" is not supported"},
        {NULL, BOS, -1, 0, false, SHEAF_E_NOT_FOUND, "tokenizer.ggml.model"},
        {"gpt2", 270, -1, 0, false, SHEAF_E_FORMAT, "bos_token_id: id 270, the vocabulary has 270 tokens"},
        {"gpt2", BOS, 999999, 0, false, SHEAF_E_FORMAT, "eot_token_id: id 999999"},
        {"gpt2", BOS, -1, 1, false, SHEAF_E_FORMAT, "token_type: 269 entries for 270 tokens"},
        {"gpt2", BOS, -1, 0, true, SHEAF_E_NOT_FOUND, "tokenizer.ggml.merges"},
        {"llama", BOS, -1, 0, false, SHEAF_E_FORMAT, "scores: absent"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        vocab_options o = PLAIN;
        sheaf_tokenizer *t = NULL;
        o.model = rows[i].model;
        o.bos = rows[i].bos;
        o.eot = rows[i].eot;
        o.short_types = rows[i].short_types;
        o.no_merges = rows[i].no_merges;
        sheaf_status s = load_with(&o, NULL, &t);
        cr_assert(s == rows[i].status && strstr(sheaf_error(), rows[i].part), "row %zu: %s \"%s\", expected \"%s\"", i,
                  sheaf_status_name(s), sheaf_error(), rows[i].part);
    }
}

/* --- SentencePiece (case H04) ---------------------------------------------------------------------- */

#define WORD "\xe2\x96\x81" /* how such a vocabulary writes a space */

static sheaf_tokenizer *load_spm(int prefix) {
    static const char *const texts[] = {
        "<unk>",  "<s>",     "</s>", "<sep>",  "<pad>",   WORD,         "R",     "i",    "v",         "e",
        "r",      "Ri",      "ver",  WORD "R", WORD "Ri", WORD "River", "River", "a",    WORD "a",    "b",
        WORD "b", WORD WORD, "d",    "o",      "w",       "wo",         "rd",    "word", WORD "word", "ve"};
    enum { N = sizeof(texts) / sizeof(*texts), ALL = N + 256 };
    const char *tokens[ALL];
    char bytes[256][8];
    int32_t types[ALL];
    float scores[ALL];
    gguf_build *b = gguf_build_new();
    for (int i = 0; i < ALL; i++) {
        if (i >= N) snprintf(bytes[i - N], 8, "<0x%02X>", i - N);
        tokens[i] = i < N ? texts[i] : bytes[i - N];
        types[i] = i >= N ? 6 : i == 0 ? 2 : i < 3 ? 3 : i < 5 ? 4 : 1;
        scores[i] = -(float)i; /* earlier tokens merge first */
    }
    gguf_build_str(b, "tokenizer.ggml.model", "llama");
    gguf_build_strs(b, "tokenizer.ggml.tokens", tokens, ALL);
    gguf_build_array(b, "tokenizer.ggml.token_type", SHEAF_GGUF_I32, types, ALL);
    gguf_build_array(b, "tokenizer.ggml.scores", SHEAF_GGUF_F32, scores, ALL);
    if (prefix >= 0) gguf_build_bool(b, "tokenizer.ggml.add_space_prefix", prefix);
    size_t n;
    sheaf_gguf *g;
    sheaf_tokenizer *t;
    const uint8_t *file = gguf_build_bytes(b, &n);
    expect_ok(sheaf_gguf_open_memory(file, n, &g));
    expect_ok(sheaf_tokenizer_new(g, NULL, &t));
    sheaf_gguf_close(g);
    gguf_build_free(b);
    return t;
}

static void expect_back(const sheaf_tokenizer *t, const char *text) {
    sheaf_ids ids = {0};
    char back[256];
    size_t need;
    expect_ok(sheaf_tokenize(t, text, strlen(text), SHEAF_TOKENIZE_PARSE_SPECIAL, &ids));
    expect_ok(sheaf_detokenize(t, ids.v, ids.n, true, back, sizeof(back), &need));
    cr_assert(need == strlen(text) && memcmp(back, text, need) == 0, "\"%s\" came back as \"%.*s\"", text, (int)need,
              back);
    sheaf_ids_free(&ids);
}

Test(tokenizer, of_sentencepiece_puts_one_space_before_a_text, .timeout = 30) {
    static const struct {
        const char *text, *with, *without;
    } rows[] = {
        /* "River": joining goes by score: "Ri" (11), " Ri" (14), "ve" (29), "ver" (12), " River" (15). */
        {"River", "15", "16"},
        {" River", "5 15", "15"},
        {"\t\tab", "5 39 39 17 19", "39 39 17 19"},
        {"a<sep> b", "18 3 20", "17 3 20"},
        {"<pad>word<pad>", "4 27 4", "4 27 4"}, /* nothing before a user-defined token, none after it */
        {"<s>word", "1 28", "1 27"},            /* a control token begins a text */
        {"\xc3\x84", "5 225 162", "225 162"},   /* bytes of a character that is no token */
        {"a" WORD "b", "18 20", "17 20"},       /* U+2581 is a space */
        {"</s>", "2", "2"},
    };
    for (int prefix = -1; prefix <= 1; prefix++) {
        sheaf_tokenizer *t = load_spm(prefix);
        for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
            expect_text(ids_of_text(t, rows[i].text, SHEAF_TOKENIZE_PARSE_SPECIAL),
                        prefix ? rows[i].with : rows[i].without);
        static const char *const texts[] = {"River",    " River",         "\t\t\t\t\tcode", "<s>[INST] x",
                                            "a<sep> b", "<pad>word<pad>", "  two",          ""};
        for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) expect_back(t, texts[i]);
        /* </s> in plain text is letters. */
        cr_assert(strchr(ids_of_text(t, "</s>", 0), ' '), "</s> became one token");
        expect_text(ids_of_text(t, "a", SHEAF_TOKENIZE_ADD_SPECIAL), prefix ? "1 18" : "1 17");
        sheaf_tokenizer_free(t);
    }
}

/* --- memory ------------------------------------------------------------------------------------------- */

static bool countdown(void *ctx, size_t size) {
    int *left = ctx;
    (void)size;
    return (*left)-- > 0;
}

static sheaf_status load_and_run(const char *pre, sheaf_ids *ids) {
    vocab_options o = PLAIN;
    sheaf_tokenizer *t;
    o.pre = pre;
    sheaf_status s = load_with(&o, NULL, &t);
    if (s) return s;
    s = sheaf_tokenize(t, "hello <|im_end|> w\xc3\xa4 A\xcc\x81 123 \xff", 30, SHEAF_TOKENIZE_PARSE_SPECIAL, ids);
    sheaf_tokenizer_free(t);
    return s;
}

Test(tokenizer, survives_every_failed_allocation, .timeout = 120) {
    static const char *const families[] = {"gpt-2", "qwen2", "falcon"};
    for (size_t f = 0; f < 3; f++) {
        bool done = false;
        for (int fail_at = 0; !done; fail_at++) {
            sheaf_ids ids = {0};
            int left = fail_at;
            sheaf_alloc_hook(countdown, &left);
            sheaf_status s = load_and_run(families[f], &ids);
            sheaf_alloc_hook(NULL, NULL);
            done = s == SHEAF_OK;
            cr_assert(done || (s == SHEAF_E_NO_MEMORY && ids.n == 0), "%s, allocation %d fails: %s (%s), %zu ids",
                      families[f], fail_at, sheaf_status_name(s), sheaf_error(), ids.n);
            sheaf_ids_free(&ids);
            cr_assert(fail_at < 10000, "it never succeeds: %s", sheaf_error());
        }
    }
}
