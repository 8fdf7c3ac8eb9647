/* Characters never leave a stream in halves, bad bytes become U+FFFD, and stop strings are found
 * across the borders of pieces (cases F04, F05). */
#include "tests/models/text_support.h"

#define BAD "\xef\xbf\xbd"

/* Pushes `bytes` in pieces of `step`, ends the stream, and expects `wanted`. */
static void expect_stream(const char *bytes, size_t n, size_t step, const char *wanted) {
    sheaf_stream st = {0};
    char out[1024], piece[SHEAF_STREAM_ROOM(64)];
    size_t total = 0;
    for (size_t at = 0; at < n; at += step) {
        size_t take = n - at < step ? n - at : step, got = sheaf_stream_push(&st, bytes + at, take, piece), bad;
        cr_assert(got <= SHEAF_STREAM_ROOM(take), "%zu bytes for %zu", got, take);
        cr_assert(sheaf_utf8_valid(piece, got, &bad), "piece at byte %zu is cut at %zu", at, bad);
        memcpy(out + total, piece, got);
        total += got;
    }
    total += sheaf_stream_end(&st, out + total);
    cr_assert(total == strlen(wanted) && memcmp(out, wanted, total) == 0, "steps of %zu: \"%.*s\", expected \"%s\"",
              step, (int)total, out, wanted);
}

Test(utf8, streams_whole_characters_and_marks_bad_bytes, .timeout = 30) {
    static const struct {
        const char *bytes, *wanted;
    } rows[] = {
        {"plain", "plain"},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"\xe2\x82\xac\xac", "\xe2\x82\xac" BAD},
        {"\xc0\x80", BAD BAD},
        {"\xed\xa0\x80", BAD BAD BAD},
        {"\xf5\x80\x80\x80", BAD BAD BAD BAD},
        {"a\xe2", "a" BAD},
        {"a\xf0\x9f\x98", "a" BAD},
        {"\xe2\x82z", BAD "z"},
        {"\xf0\x9f\xc3\xa4", BAD "\xc3\xa4"},
        {"\xe2\xe2\x82\xac", BAD "\xe2\x82\xac"},
        {"\xf4\x90\x80\x80", BAD BAD BAD BAD},
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
        {"\xe0\x80\x80", BAD BAD BAD},
        {"\x80\xbf\xff", BAD BAD BAD},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        for (size_t step = 1; step <= 5; step++)
            expect_stream(rows[i].bytes, strlen(rows[i].bytes), step, rows[i].wanted);
}

/* A lead byte as the last token of one reply does not spoil the next. */
Test(utf8, a_stream_is_ready_again_after_its_end, .timeout = 30) {
    sheaf_stream st = {0};
    char out[64];
    expect_int(sheaf_stream_push(&st, "\xf0\x9f", 2, out), 0);
    expect_int(sheaf_stream_end(&st, out), 3);
    expect_int(sheaf_stream_end(&st, out), 0);
    expect_int(sheaf_stream_push(&st, "a", 1, out), 1);
}

Test(utf8, every_code_point_is_valid_and_every_prefix_is_cut, .timeout = 60) {
    for (uint32_t c = 0x80; c < 0x110000; c += c < 0x3000 ? 1 : 97) {
        char s[4];
        size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4, at;
        bool cut, surrogate = c >= 0xd800 && c <= 0xdfff;
        s[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c >> 6 * (n - 1));
        for (size_t i = 1; i < n; i++) s[i] = (char)(0x80 | (c >> 6 * (n - 1 - i) & 63));
        cr_assert((sheaf_utf8_char(s, n, &cut) == n) == !surrogate && sheaf_utf8_valid(s, n, &at) == !surrogate,
                  "U+%04X", c);
        if (surrogate) continue;
        for (size_t part = 1; part < n; part++)
            cr_assert(sheaf_utf8_char(s, part, &cut) == 0 && cut, "U+%04X: %zu of %zu bytes", c, part, n);
    }
}

/* --- stop strings --------------------------------------------------------------------------------------- */

typedef struct stop_case {
    const char *stops[3], *pieces[6], *text;
    bool hit;
} stop_case;

static void check_stops(const stop_case *c, int row) {
    sheaf_str stops[3], text;
    size_t n = 0, total = 0;
    sheaf_stops *m;
    char got[256] = "";
    bool hit = false;
    for (; n < 3 && c->stops[n]; n++) stops[n] = (sheaf_str){c->stops[n], strlen(c->stops[n])};
    expect_ok(sheaf_stops_new(stops, n, &m));
    for (int again = 0; again < 2; again++) { /* the second time after a reset */
        total = 0;
        hit = false;
        for (int i = 0; i < 6 && c->pieces[i]; i++) {
            expect_ok(sheaf_stops_push(m, c->pieces[i], strlen(c->pieces[i]), &text, &hit));
            memcpy(got + total, text.s, text.n);
            total += text.n;
            cr_assert(strncmp(got, c->text, total) == 0, "row %d, piece %d: \"%.*s\" leaked, expected \"%s\"", row, i,
                      (int)total, got, c->text);
            if (hit) break;
        }
        if (!hit) {
            text = sheaf_stops_end(m, &hit);
            memcpy(got + total, text.s, text.n);
            total += text.n;
        }
        got[total] = 0;
        cr_assert(strcmp(got, c->text) == 0 && hit == c->hit, "row %d: \"%s\" %d, expected \"%s\" %d", row, got, hit,
                  c->text, c->hit);
        sheaf_stops_reset(m);
    }
    sheaf_stops_free(m);
}

Test(stops, cut_exactly_before_the_earliest_stop, .timeout = 30) {
    static const stop_case rows[] = {
        {{"two three"}, {"one t", "wo thr", "ee fo", "ur"}, "one ", true},
        {{"xyxz"}, {"xy", "x", "yxz"}, "xy", true},
        {{"stop"}, {"a stop b"}, "a ", true},
        {{"bb", "a"}, {"xxbba"}, "xx", true},
        {{"bb", "a"}, {"xxabb"}, "xx", true},
        {{"abcd"}, {"xab", "c", "x"}, "xabcx", false},
        {{"abcd"}, {"xabc"}, "xabc", false},
        {{"\xe2\x82\xac"},
         {"a\xe2", "\x82",
          "\xac"
          "b"},
         "a",
         true},
        {{"abcx", "bc"}, {"ab", "c"}, "a", true}, /* the longer one never completes: the shorter counts at the end */
        {{"abcx", "bc"}, {"abc", "x"}, "", true},
        {{"abcx", "bc"}, {"abc", "y"}, "a", true},
        {{NULL}, {"any", "thing"}, "anything", false},
        {{"a"}, {"a"}, "", true},
        {{"aa"}, {"a", "", "a"}, "", true},
        {{"aab"}, {"aaab"}, "a", true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) check_stops(&rows[i], (int)i);
}

Test(stops, give_nothing_after_a_stop_and_refuse_empty_ones, .timeout = 30) {
    sheaf_stops *m;
    sheaf_str stop = {"x", 1}, text;
    bool hit;
    expect_ok(sheaf_stops_new(&stop, 1, &m));
    expect_ok(sheaf_stops_push(m, "ax", 2, &text, &hit));
    expect_ok(sheaf_stops_push(m, "more", 4, &text, &hit));
    expect_int(text.n, 0);
    expect_int(hit, true);
    expect_int(sheaf_stops_end(m, &hit).n, 0);
    sheaf_stops_free(m);
    stop.n = 0;
    expect_status(sheaf_stops_new(&stop, 1, &m), SHEAF_E_ARGUMENT);
}
