/* Well-formed UTF-8: one character, a whole text, and a stream whose borders cut characters. Bytes
 * that can belong to no character become U+FFFD, one for each maximal part that is the beginning of
 * a character (the substitution that Unicode recommends). It knows nothing of tokens. */
#include "models/text/text.h"

#include <string.h>

static const char REPLACEMENT[] = "\xef\xbf\xbd";

/* Bytes of the character that begins with `lead`, and the range of its second byte; 0: no lead. */
static size_t lead_length(uint8_t lead, uint8_t *lo, uint8_t *hi) {
    *lo = 0x80;
    *hi = 0xbf;
    if (lead < 0x80) return 1;
    if (lead < 0xc2) return 0; /* a continuation, or an overlong form */
    if (lead < 0xe0) return 2;
    if (lead < 0xf0) {
        if (lead == 0xe0) *lo = 0xa0;
        if (lead == 0xed) *hi = 0x9f; /* no surrogates */
        return 3;
    }
    if (lead > 0xf4) return 0;
    if (lead == 0xf0) *lo = 0x90;
    if (lead == 0xf4) *hi = 0x8f; /* not above U+10FFFF */
    return 4;
}

/* How many of the n bytes are a correct beginning of one character: its length if whole. */
static size_t good_prefix(const char *s, size_t n, size_t *length) {
    uint8_t lo, hi;
    *length = n ? lead_length((uint8_t)s[0], &lo, &hi) : 0;
    if (*length == 0) return 0;
    size_t good = 1;
    while (good < *length && good < n) {
        uint8_t c = (uint8_t)s[good];
        if (c < lo || c > hi) break;
        lo = 0x80;
        hi = 0xbf;
        good++;
    }
    return good;
}

size_t sheaf_utf8_char(const char *s, size_t n, bool *cut) {
    size_t length, good = good_prefix(s, n, &length);
    if (cut) *cut = length && good < length && good == n;
    return length && good == length ? length : 0;
}

bool sheaf_utf8_valid(const char *s, size_t n, size_t *at) {
    for (size_t i = 0; i < n;) {
        if ((uint8_t)s[i] < 0x80) {
            i++;
            continue;
        }
        size_t len = sheaf_utf8_char(s + i, n - i, NULL);
        if (len == 0) {
            if (at) *at = i;
            return false;
        }
        i += len;
    }
    return true;
}

size_t sheaf_stream_push(sheaf_stream *st, const char *bytes, size_t n, char *out) {
    size_t written = 0;
    for (size_t i = 0; i < n;) {
        /* `held` is always the correct beginning of a character: at most three bytes. */
        st->held[st->n] = bytes[i];
        size_t length, good = good_prefix(st->held, (size_t)st->n + 1, &length);
        if (good == (size_t)st->n + 1) {
            st->n++;
            i++;
            if (good < length) continue;
            memcpy(out + written, st->held, length);
            written += length;
        } else {
            /* The new byte does not continue what is held: that is one bad part, and the byte is
             * looked at again by itself. A byte that cannot begin anything is a part of its own. */
            memcpy(out + written, REPLACEMENT, 3);
            written += 3;
            if (st->n == 0) i++;
        }
        st->n = 0;
    }
    return written;
}

size_t sheaf_stream_end(sheaf_stream *st, char *out) {
    if (st->n == 0) return 0;
    st->n = 0;
    memcpy(out, REPLACEMENT, 3);
    return 3;
}
