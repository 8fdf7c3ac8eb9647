/* Small things that several commands need. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "launch/launch.h"
#include "tensor/wait.h"

double now_ms(void) { return (double)sheaf_now_ns() * 1e-6; }

/* What a failed call on a file was short of: an input is bad unless the machine has no more to give. */
sheaf_status errno_status(int code) {
    if (code == EMFILE || code == ENFILE || code == ENOMEM) return SHEAF_E_NO_MEMORY;
    return code == ENOSPC || code == EDQUOT || code == EFBIG ? SHEAF_E_NO_SPACE : SHEAF_E_IO;
}

sheaf_status stdout_failed(void) {
    if (errno == ENOSPC) return sheaf_fail(SHEAF_E_NO_SPACE, "writing: standard output: the disk is full");
    return sheaf_fail(SHEAF_E_IO, "writing: standard output: %s",
                      errno == EPIPE ? "the reader is gone" : strerror(errno));
}

sheaf_status check_utf8(const char *what, const char *text, size_t n) {
    size_t at;
    if (sheaf_utf8_valid(text, n, &at)) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_FORMAT, "%s: byte %zu (0x%02X) is not UTF-8", what, at, (unsigned char)text[at]);
}

/* \n, \t, \r, \", \' and \\ in place; anything else stays as it is. */
size_t unescape(char *s, size_t n) {
    size_t w = 0;
    for (size_t r = 0; r < n; r++) {
        char c = s[r];
        if (c == '\\' && r + 1 < n) {
            static const char from[] = "ntr\"'\\", to[] = "\n\t\r\"'\\";
            const char *hit = memchr(from, s[r + 1], sizeof from - 1);
            if (hit) {
                c = to[hit - from];
                r++;
            }
        }
        s[w++] = c;
    }
    s[w] = 0;
    return w;
}

/* More is no text that anybody meant: a device without an end, or the wrong file. */
enum { TEXT_MOST = 1 << 30, TABLE_MOST = 1 << 26 };

static sheaf_status read_all(FILE *f, const char *name, size_t most, char **text, size_t *n) {
    size_t cap = 4096, used = 0;
    char *buf = sheaf_malloc(cap);
    while (buf) {
        used += fread(buf + used, 1, cap - 1 - used, f);
        if (ferror(f) || feof(f) || interrupted || terminated) break;
        if (cap - 1 > used) continue;
        if (cap > most) {
            sheaf_free(buf);
            return sheaf_fail(SHEAF_E_FORMAT, "reading: %s: more than %zu MiB of text", name, most >> 20);
        }
        char *grown = sheaf_realloc(buf, cap * 2);
        if (!grown) sheaf_free(buf);
        buf = grown;
        cap *= 2;
    }
    if (!buf) return sheaf_fail(SHEAF_E_NO_MEMORY, "reading: %s: out of memory after %zu bytes", name, used);
    if (ferror(f) || interrupted || terminated) {
        sheaf_free(buf);
        if (interrupted || terminated) return sheaf_fail(SHEAF_E_CANCELLED, "reading: %s: interrupted", name);
        return sheaf_fail(SHEAF_E_IO, "reading: %s: %s", name, strerror(errno));
    }
    buf[used] = 0;
    *text = buf;
    *n = used;
    return SHEAF_OK;
}

static sheaf_status read_at_most(const char *path, size_t most, char **text, size_t *n) {
    if (!path || !strcmp(path, "-")) return read_all(stdin, "standard input", most, text, n);
    FILE *f = fopen(path, "rb");
    if (!f) return sheaf_fail(errno_status(errno), "reading: %s: %s", path, strerror(errno));
    struct stat st;
    sheaf_status s;
    if (!fstat(fileno(f), &st) && S_ISDIR(st.st_mode))
        s = sheaf_fail(SHEAF_E_IO, "reading: %s: is a directory", path);
    else
        s = read_all(f, path, most, text, n);
    fclose(f);
    return s;
}

sheaf_status read_text(const char *path, char **text, size_t *n) { return read_at_most(path, TEXT_MOST, text, n); }
sheaf_status read_table(const char *path, char **text, size_t *n) { return read_at_most(path, TABLE_MOST, text, n); }

/* "sheaf: what was being done: what it was done to: what is wrong", whatever part of that the text has. Names out of
 * files may hold anything; a control character is shown as '?'. */
void say_error(const char *command, sheaf_status status) {
    const char *text = *sheaf_error() ? sheaf_error() : sheaf_status_text(status), *hint = sheaf_error_hint_text();
    char line[2 * SHEAF_ERROR_MAX + 256], clean[SHEAF_ERROR_MAX];
    int colons = 0;
    for (const char *p = text; (p = strstr(p, ": ")); p++) colons++;
    snprintf(clean, sizeof clean, "%s", text);
    for (char *p = clean; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f) *p = '?';
    /* a text that only says for what there was no memory, or no room, still has to say what is wrong */
    snprintf(line, sizeof line, "sheaf: %s%s%s%s%s\n%s%s%s", colons < 2 ? command ? command : "starting" : "",
             colons < 2 ? ": " : "", clean, colons < 1 ? ": " : "", colons < 1 ? sheaf_status_text(status) : "",
             *hint ? "hint: " : "", hint, *hint ? "\n" : "");
    fputs(line, stderr);
}
