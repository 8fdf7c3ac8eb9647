/* Stop strings over a stream of pieces: text is shown up to the earliest place where a stop string
 * may still be beginning, and cut exactly before the first one that completes. */
#include "models/text/text.h"

#include <string.h>

struct sheaf_stops {
    char *pool; /* the stop strings, one after the other */
    size_t *lengths;
    size_t count, longest;
    char *held; /* shown text is at the front until the next call, then dropped */
    size_t n, shown, capacity;
    bool done;
};

sheaf_status sheaf_stops_new(const sheaf_str *stops, size_t count, sheaf_stops **out) {
    size_t bytes = 1, lengths;
    for (size_t i = 0; i < count; i++) {
        if (stops[i].n == 0) return sheaf_fail(SHEAF_E_ARGUMENT, "stop string %zu is empty", i + 1);
        if (sheaf_add_overflow(bytes, stops[i].n, &bytes))
            return sheaf_fail(SHEAF_E_RANGE, "stop strings are too long");
    }
    if (sheaf_mul_overflow(count + 1, sizeof(size_t), &lengths))
        return sheaf_fail(SHEAF_E_RANGE, "too many stop strings");
    sheaf_stops *m = sheaf_calloc(1, sizeof(*m));
    if (!m) return sheaf_fail(SHEAF_E_NO_MEMORY, "stop strings");
    m->pool = sheaf_malloc(bytes);
    m->lengths = sheaf_malloc(lengths);
    if (!m->pool || !m->lengths) {
        sheaf_stops_free(m);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "stop strings");
    }
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(m->pool + at, stops[i].s, stops[i].n);
        m->lengths[i] = stops[i].n;
        if (stops[i].n > m->longest) m->longest = stops[i].n;
        at += stops[i].n;
    }
    m->count = count;
    *out = m;
    return SHEAF_OK;
}

void sheaf_stops_free(sheaf_stops *m) {
    if (!m) return;
    sheaf_free(m->pool);
    sheaf_free(m->lengths);
    sheaf_free(m->held);
    sheaf_free(m);
}

void sheaf_stops_reset(sheaf_stops *m) {
    m->n = m->shown = 0;
    m->done = false;
}

/* Does a stop string begin at `at`? 1: a whole one; -1: one that could still complete; 0: no. */
static int begins_at(const sheaf_stops *m, size_t at) {
    size_t have = m->n - at;
    int answer = 0;
    const char *stop = m->pool;
    for (size_t i = 0; i < m->count; stop += m->lengths[i++]) {
        size_t n = m->lengths[i] < have ? m->lengths[i] : have;
        if (memcmp(m->held + at, stop, n) != 0) continue;
        if (n == m->lengths[i]) return 1;
        answer = -1;
    }
    return answer;
}

static sheaf_status take(sheaf_stops *m, const char *piece, size_t n) {
    if (m->shown) memmove(m->held, m->held + m->shown, m->n - m->shown);
    m->n -= m->shown;
    m->shown = 0;
    size_t need;
    if (sheaf_add_overflow(m->n, n, &need)) return sheaf_fail(SHEAF_E_RANGE, "stop strings: piece of %zu bytes", n);
    if (need > m->capacity) {
        size_t capacity = need + need / 2 + 64;
        char *grown = sheaf_realloc(m->held, capacity);
        if (!grown) return sheaf_fail(SHEAF_E_NO_MEMORY, "stop strings: %zu bytes held", capacity);
        m->held = grown;
        m->capacity = capacity;
    }
    memcpy(m->held + m->n, piece, n);
    m->n = need;
    return SHEAF_OK;
}

sheaf_status sheaf_stops_push(sheaf_stops *m, const char *piece, size_t n, sheaf_str *text, bool *hit) {
    *hit = m->done;
    *text = (sheaf_str){"", 0};
    if (m->done || (n == 0 && m->shown == 0)) return SHEAF_OK;
    if (!m->held && n == 0) return SHEAF_OK;
    sheaf_status s = take(m, piece, n);
    if (s) return s;
    size_t at = 0;
    int answer = 0;
    for (; at < m->n; at++)
        if ((answer = begins_at(m, at))) break;
    m->shown = at;
    m->done = *hit = answer > 0;
    *text = (sheaf_str){m->held, at};
    return SHEAF_OK;
}

sheaf_str sheaf_stops_end(sheaf_stops *m, bool *hit) {
    sheaf_str rest = {"", 0};
    *hit = m->done;
    size_t at = m->shown;
    if (!m->done && m->n > m->shown) {
        while (at < m->n && begins_at(m, at) <= 0) at++;
        *hit = at < m->n;
        rest = (sheaf_str){m->held + m->shown, at - m->shown};
    }
    m->n = m->shown = 0;
    m->done = true;
    return rest;
}
