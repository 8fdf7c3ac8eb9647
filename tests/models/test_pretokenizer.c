/* How each family cuts text into words, and the classes of characters behind it. Looks inside the room:
 * ids alone do not show where a word began. */
#include "models/text/tokenizer_internal.h"
#include "tests/models/text_support.h"

#include <utf8proc.h>

typedef struct words {
    char text[1024];
    size_t n;
} words;

static sheaf_status add_word(void *ctx, const char *word, size_t n) {
    words *w = ctx;
    w->n += (size_t)snprintf(w->text + w->n, sizeof(w->text) - w->n, "%s%.*s", w->n ? "|" : "", (int)n, word);
    return SHEAF_OK;
}

/* Words with bars between them, in a static buffer. */
static const char *cut(const struct pre_split *p, const char *text, size_t n) {
    static words w;
    w.n = 0;
    w.text[0] = 0;
    expect_ok(pre_split_run(p, text, n, add_word, &w));
    return w.text;
}

Test(pretokenizer, cuts_as_each_family_does, .timeout = 60) {
    static const struct {
        const char *family, *text, *words;
    } rows[] = {
        {"gpt-2", "Hello world", "Hello| world"},
        {"gpt-2", "don't we'LL 12345", "don|'t| we|'|LL| 12345"},
        {"gpt-2", "a   b", "a|  | b"},
        {"gpt-2", "a\n\n\nb", "a|\n\n|\n|b"},
        {"gpt-2", "x!!! ??", "x|!!!| ??"},
        {"gpt-2",
         "a\xe2\x80\xa9"
         "b",
         "a|\xe2\x80\xa9|b"}, /* U+2029 is white space */
        {"gpt-2", "  ", "  "},
        {"gpt-2", "", ""},
        {"smollm", "12345 1234567", "1|2|3|4|5| |1|2|3|4|5|6|7"},
        {"smollm", "a 1", "a| |1"},
        {"llama-bpe", "12345 1234567", "123|45| |123|456|7"},
        {"llama-bpe", "don't we'LL", "don|'t| we|'LL"},
        {"llama-bpe", "a \n b", "a| \n| b"},
        {"llama-bpe", "x.\n\ny", "x|.\n\n|y"},
        {"llama-bpe", "(foo) -bar", "(foo|)| -|bar"},
        {"llama-bpe",
         "\xe4\xb8\xad\xe6\x96\x87"
         "12",
         "\xe4\xb8\xad\xe6\x96\x87|12"},
        {"qwen2", "12345", "1|2|3|4|5"},
        {"qwen2", "\tcode", "\tcode"},
        {"falcon", "12345 it's $5.00", "123|45| it|'|s| |$|5|.|00"},
        {"default", "12345 it's", "123|45| it|'|s"},
        {"tekken", "HelloWorld ABCdef 42", "Hello|World| ABCdef| |4|2"},
        {"gpt-4o", "it's HTTPServer", "it's| HTTPServer"},
        {"deepseek-v3", "ab12345\xe4\xb8\xad!x", "ab|123|45|\xe4\xb8\xad|!x"},
        {"none", "a b\n1", "a b\n1"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct pre_split *p;
        expect_ok(pre_split_new(rows[i].family, &p));
        const char *got = cut(p, rows[i].text, strlen(rows[i].text));
        cr_assert(strcmp(got, rows[i].words) == 0, "%s: \"%s\" is cut \"%s\", expected \"%s\"", rows[i].family,
                  rows[i].text, got, rows[i].words);
        pre_split_free(p);
    }
}

Test(pretokenizer, makes_words_of_bytes_that_are_no_characters, .timeout = 30) {
    struct pre_split *p;
    expect_ok(pre_split_new("gpt-2", &p));
    expect_text(cut(p,
                    "ab\xff\xfe"
                    "cd \xc3",
                    8),
                "ab|\xff\xfe|cd| |\xc3");
    expect_text(cut(p, "\xe2\x82", 2), "\xe2\x82");
    pre_split_free(p);
}

/* Case H10: letters, digits and white space are those of Unicode. PCRE2 and utf8proc come with their own
 * tables, of versions one apart: they may differ only where one of them knows no character at all. */
Test(pretokenizer, knows_the_classes_of_unicode, .timeout = 60) {
    static const uint32_t special[] = {0x2028, 0x2029, 0x85,    0xa0,   0x180e, 0x200b,
                                       0x3000, 0x301,  0x1f3fd, 0xfeff, 0x1c,   0x1680};
    struct pre_split *p;
    uint32_t state = 99, unknown = 0;
    expect_ok(pre_split_new("gpt-2", &p));
    for (int i = 0; i < 12000; i++) {
        state = state * 1664525 + 1013904223;
        uint32_t c = i < 12 ? special[i] : i % 3 ? state >> 8 & 0xffff : (state >> 8) % 0x110000;
        if ((c >= 0xd800 && c <= 0xdfff) || c == '\'' || c == '|') continue;
        char text[8] = "a";
        size_t n = 1 + (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)text + 1);
        text[n++] = 'a';
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
        bool letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
        bool one_word = strchr(cut(p, text, n), '|') == NULL && c != ' ';
        if (category == UTF8PROC_CATEGORY_CN || (letter && !one_word))
            unknown += letter;
        else
            cr_assert(one_word == letter, "U+%04X is of category %d, one word: %d", c, category, one_word);
    }
    cr_assert(unknown < 60, "%u letters of Unicode 15 are none to PCRE2: more than that version added", unknown);
    pre_split_free(p);
}

Test(pretokenizer, normalises_only_what_can_be_done_in_linear_time, .timeout = 30) {
    char *out, many[400] = "a";
    size_t n;
    expect_ok(text_nfc("plain", 5, &out, &n));
    cr_assert(!out, "ASCII was copied");
    expect_ok(text_nfc("A\xcc\x88", 3, &out, &n));
    cr_assert(out && n == 2 && memcmp(out, "\xc3\x84", 2) == 0, "A with a diaeresis became %zu bytes", n);
    sheaf_free(out);
    for (int i = 0; i < 100; i++) strcat(many, "\xcc\x88");
    expect_ok(text_nfc(many, strlen(many), &out, &n));
    cr_assert(!out, "100 marks on one letter were put in order");
    expect_ok(text_nfc("\xff", 1, &out, &n));
    cr_assert(!out, "a bad byte was normalised");
}
