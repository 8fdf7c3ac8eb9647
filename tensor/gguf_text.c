/* Strings of a file as text that is safe to print: one line, valid UTF-8, no terminal control. */
#include "tensor/gguf.h"

#include <stdio.h>
#include <string.h>

/* Bytes of the well-formed UTF-8 character at p (n bytes left), 0 when it is none or one that a
 * terminal would obey (C0, DEL, C1). */
static size_t printable(const uint8_t *p, size_t n) {
    if (p[0] < 0x80) return p[0] >= 0x20 && p[0] != 0x7f ? 1 : 0;
    size_t length = p[0] >= 0xc2 && p[0] < 0xe0   ? 2
                    : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
                    : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
                                                  : 0;
    if (length == 0 || length > n) return 0;
    uint32_t code = p[0] & (0xff >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    static const uint32_t lowest[] = {0, 0, 0xa0, 0x800, 0x10000};
    bool fits = code >= lowest[length] && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000);
    return fits ? length : 0;
}

static size_t escape(uint8_t byte, char piece[8]) {
    char short_form = byte == '\n' ? 'n' : byte == '\t' ? 't' : byte == '\\' ? '\\' : 0;
    if (short_form) return (size_t)snprintf(piece, 8, "\\%c", short_form);
    return (size_t)snprintf(piece, 8, "\\x%02x", byte);
}

char *sheaf_str_text(sheaf_str t, char *buf, size_t n) {
    enum { ELLIPSIS = 3 };
    const uint8_t *p = (const uint8_t *)t.s;
    size_t at = 0, cut = 0; /* cut: the last border that leaves room for "..." */
    if (n == 0) return buf;
    for (size_t i = 0; i < t.n;) {
        char piece[8];
        size_t used = printable(p + i, t.n - i), length = used;
        if (used == 0 || p[i] == '\\') {
            used = 1;
            length = escape(p[i], piece);
        } else {
            memcpy(piece, p + i, used);
        }
        if (at + ELLIPSIS + 1 <= n) cut = at;
        if (at + length + 1 > n) {
            for (at = cut; at < cut + ELLIPSIS && at + 1 < n; at++) buf[at] = '.';
            break;
        }
        memcpy(buf + at, piece, length);
        at += length;
        i += used;
    }
    buf[at] = 0;
    return buf;
}
