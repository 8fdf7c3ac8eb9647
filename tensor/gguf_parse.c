/* One GGUF header, from bytes to validated entries and tensor infos.
 *
 *   "GGUF" u32 version u64 n_tensors u64 n_keys
 *   n_keys    x  { string key, u32 type, value }
 *   n_tensors x  { string name, u32 n_dims, u64 ne[n_dims], u32 type, u64 offset }
 *   padding to general.alignment, then data; offsets count from there. A string is u64 length + bytes.
 *
 * Rules, all kept before anything is believed:
 *  1. a length or count is compared with the bytes that are left before it is multiplied or allocated;
 *  2. arrays grow as items are really read, so a lying count costs no memory;
 *  3. products and sums go through the overflow builtins;
 *  4. nothing recurses: nested arrays are walked with a small stack of counters.
 * Does not look at tensor data, and does not know about other shards. */
#include "tensor/gguf_internal.h"

#include <stdio.h>
#include <string.h>

enum {
    MIN_ENTRY = 8 + 4 + 1,          /* empty key, type, one byte */
    MIN_TENSOR = 8 + 4 + 8 + 4 + 8, /* empty name, one dimension */
    MIN_ARRAY = 4 + 8,
    MAX_NESTING = 4,
    NAME_TEXT = 160,
};

typedef struct cursor {
    gguf_file *f;
    uint64_t pos;
    const char *what; /* "key" or "tensor": what is being read, for messages */
    uint64_t index;
    char name[NAME_TEXT]; /* its escaped name once known */
} cursor;

#define LLU(x) ((unsigned long long)(x))

uint32_t gguf_scalar_bytes(uint32_t type) {
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

const char *gguf_type_text(uint32_t type) {
    static const char *const text[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                       "bool", "string", "array", "u64", "i64", "f64"};
    return type < sizeof text / sizeof *text ? text[type] : "unknown";
}

/* Fails with the place that is being read in front. */
SHEAF_PRINTF(3, 4) static sheaf_status bad(const cursor *c, sheaf_status s, const char *format, ...) {
    char text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!c->what) return sheaf_fail(s, "%s: %s", c->f->path, text);
    if (c->name[0]) return sheaf_fail(s, "%s: %s %s: %s", c->f->path, c->what, c->name, text);
    return sheaf_fail(s, "%s: %s number %llu: %s", c->f->path, c->what, LLU(c->index), text);
}

static void begin(cursor *c, const char *what, uint64_t index) {
    c->what = what;
    c->index = index;
    c->name[0] = 0;
}

static uint64_t left(const cursor *c) { return c->f->size - c->pos; }

/* Makes n bytes at the cursor readable. */
static sheaf_status need(cursor *c, uint64_t n) {
    if (n > left(c))
        return bad(c, SHEAF_E_FORMAT, "%llu bytes needed at byte %llu, but the file ends at byte %llu (truncated?)",
                   LLU(n), LLU(c->pos), LLU(c->f->size));
    uint64_t end = c->pos + n;
    if (end <= c->f->loaded && end <= GGUF_MAX_HEADER) return SHEAF_OK;
    if (end > GGUF_MAX_HEADER)
        return bad(c, SHEAF_E_UNSUPPORTED, "metadata goes beyond %llu bytes", LLU(GGUF_MAX_HEADER));
    return gguf_file_load(c->f, end);
}

static sheaf_status take_u32(cursor *c, uint32_t *out) {
    sheaf_status s = need(c, 4);
    if (s) return s;
    *out = gguf_u32(c->f->head + c->pos);
    c->pos += 4;
    return SHEAF_OK;
}

static sheaf_status take_u64(cursor *c, uint64_t *out) {
    sheaf_status s = need(c, 8);
    if (s) return s;
    *out = gguf_u64(c->f->head + c->pos);
    c->pos += 8;
    return SHEAF_OK;
}

static sheaf_status take_string(cursor *c, uint32_t *at, uint32_t *n) {
    uint64_t length;
    sheaf_status s = take_u64(c, &length);
    if (!s) s = need(c, length);
    if (s) return s;
    *at = (uint32_t)c->pos;
    *n = (uint32_t)length;
    c->pos += length;
    return SHEAF_OK;
}

/* Room for one more item in an array that doubles. */
static sheaf_status room(cursor *c, void *array, uint32_t n, uint32_t *cap, size_t item) {
    void **p = array;
    if (n < *cap) return SHEAF_OK;
    uint32_t want = *cap ? *cap * 2 : 32;
    void *grown = sheaf_realloc(*p, want * item);
    if (!grown) return bad(c, SHEAF_E_NO_MEMORY, "no memory for %u items", want);
    *p = grown;
    *cap = want;
    return SHEAF_OK;
}

/* --- the file's first bytes --- */

/* What a file with another beginning probably is; people mix these up. */
static sheaf_status foreign(const cursor *c, const uint8_t *h) {
    static const struct {
        const char *magic, *what;
    } known[] = {
        {"FUGG", "a big-endian file"},
        {"lmgg", "a GGML file older than GGUF"},
        {"fmgg", "a GGML file older than GGUF"},
        {"tjgg", "a GGML file older than GGUF"},
        {"algg", "a GGML adapter older than GGUF"},
        {"PK\3\4", "a zip or PyTorch file"},
        {"vers", "a Git LFS pointer, not the file itself"},
        {"<!DO", "a web page"},
        {"<htm", "a web page"},
        {"\0\0\0\0", "zeros: an unfinished download?"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!memcmp(h, known[i].magic, 4)) return bad(c, SHEAF_E_FORMAT, "not a GGUF file: it is %s", known[i].what);
    return bad(c, SHEAF_E_FORMAT, "not a GGUF file: it begins with bytes %02x %02x %02x %02x", h[0], h[1], h[2], h[3]);
}

static sheaf_status parse_start(cursor *c, uint64_t *n_tensors, uint64_t *n_keys) {
    if (c->f->size < 4) return bad(c, SHEAF_E_FORMAT, "not a GGUF file: it has %llu bytes", LLU(c->f->size));
    sheaf_status s = need(c, 4);
    if (s) return s;
    if (memcmp(c->f->head, "GGUF", 4) != 0) return foreign(c, c->f->head);
    c->pos = 4;
    s = take_u32(c, &c->f->version);
    if (s) return s;
    uint32_t v = c->f->version;
    if (v && (v & 0xffff) == 0)
        return bad(c, SHEAF_E_UNSUPPORTED,
                   "big-endian file (version bytes %08x); convert it on the machine it came from", v);
    if (v != 2 && v != 3) return bad(c, SHEAF_E_UNSUPPORTED, "GGUF version %u not supported (2 and 3 are)", v);
    s = take_u64(c, n_tensors);
    if (!s) s = take_u64(c, n_keys);
    if (s) return s;
    if (*n_keys > left(c) / MIN_ENTRY)
        return bad(c, SHEAF_E_FORMAT, "it says %llu keys, but %llu bytes cannot hold them", LLU(*n_keys), LLU(left(c)));
    if (*n_tensors > left(c) / MIN_TENSOR)
        return bad(c, SHEAF_E_FORMAT, "it says %llu tensors, but %llu bytes cannot hold them", LLU(*n_tensors),
                   LLU(left(c)));
    return SHEAF_OK;
}

/* --- metadata --- */

static sheaf_status skip_scalars(cursor *c, uint32_t type, uint64_t n) {
    uint32_t bytes = gguf_scalar_bytes(type);
    if (n > left(c) / bytes)
        return bad(c, SHEAF_E_FORMAT, "%llu elements of %u bytes at byte %llu, but the file ends at byte %llu", LLU(n),
                   bytes, LLU(c->pos), LLU(c->f->size));
    sheaf_status s = need(c, n * bytes);
    if (!s) c->pos += n * bytes;
    return s;
}

static sheaf_status skip_strings(cursor *c, uint64_t n, bool remember) {
    if (n > left(c) / 8)
        return bad(c, SHEAF_E_FORMAT, "%llu strings at byte %llu, but the file ends at byte %llu", LLU(n), LLU(c->pos),
                   LLU(c->f->size));
    sheaf_status s = SHEAF_OK;
    for (uint64_t i = 0; i < n && !s; i++) {
        uint32_t at, length;
        if (remember) s = room(c, &c->f->strings, c->f->n_strings, &c->f->cap_strings, sizeof *c->f->strings);
        if (remember && !s) c->f->strings[c->f->n_strings++] = (uint32_t)c->pos;
        if (!s) s = take_string(c, &at, &length);
    }
    return s;
}

static sheaf_status array_head(cursor *c, uint32_t *type, uint64_t *n) {
    sheaf_status s = take_u32(c, type);
    if (!s) s = take_u64(c, n);
    if (s) return s;
    if (*type > SHEAF_GGUF_F64) return bad(c, SHEAF_E_FORMAT, "array element type %u is unknown", *type);
    if (*type == SHEAF_GGUF_ARRAY && *n > left(c) / MIN_ARRAY)
        return bad(c, SHEAF_E_FORMAT, "%llu nested arrays at byte %llu, but the file ends at byte %llu", LLU(*n),
                   LLU(c->pos), LLU(c->f->size));
    return SHEAF_OK;
}

/* Walks over n arrays (of arrays ...) that nobody can look into, only to find where they end. */
static sheaf_status skip_nested(cursor *c, uint64_t n) {
    uint64_t waiting[MAX_NESTING] = {n};
    int depth = 1;
    sheaf_status s = SHEAF_OK;
    while (depth > 0 && !s) {
        if (waiting[depth - 1] == 0) {
            depth--;
            continue;
        }
        waiting[depth - 1]--;
        uint32_t type;
        uint64_t count;
        s = array_head(c, &type, &count);
        if (s) break;
        if (type == SHEAF_GGUF_STRING) {
            s = skip_strings(c, count, false);
        } else if (type != SHEAF_GGUF_ARRAY) {
            s = skip_scalars(c, type, count);
        } else if (depth == MAX_NESTING) {
            s = bad(c, SHEAF_E_UNSUPPORTED, "arrays nested more than %d deep", MAX_NESTING);
        } else {
            waiting[depth++] = count;
        }
    }
    return s;
}

static sheaf_status parse_array(cursor *c, gguf_entry *e) {
    uint32_t type;
    uint64_t n;
    sheaf_status s = array_head(c, &type, &n);
    if (s) return s;
    e->element = (uint8_t)type;
    e->n = (int64_t)n; /* below 2^63: compared with the bytes that are left, here and below */
    e->value_at = (uint32_t)c->pos;
    e->first_string = c->f->n_strings;
    if (type == SHEAF_GGUF_STRING) return skip_strings(c, n, true);
    if (type == SHEAF_GGUF_ARRAY) return skip_nested(c, n);
    return skip_scalars(c, type, n);
}

static sheaf_status parse_entry(cursor *c) {
    gguf_file *f = c->f;
    gguf_entry e = {0};
    uint32_t type = 0, at, n;
    sheaf_status s = take_string(c, &e.key_at, &e.key_n);
    if (s) return s;
    sheaf_str_text((sheaf_str){(const char *)f->head + e.key_at, e.key_n}, c->name, sizeof c->name);
    s = take_u32(c, &type);
    if (s) return s;
    if (type > SHEAF_GGUF_F64) return bad(c, SHEAF_E_FORMAT, "value type %u is unknown", type);
    e.type = (uint8_t)type;
    e.value_at = (uint32_t)c->pos;
    if (type == SHEAF_GGUF_ARRAY) {
        s = parse_array(c, &e);
    } else if (type == SHEAF_GGUF_STRING) {
        s = take_string(c, &at, &n);
    } else {
        s = skip_scalars(c, type, 1);
    }
    if (!s) s = room(c, &f->entries, f->n_entries, &f->cap_entries, sizeof *f->entries);
    if (s) return s;
    e.value_end = (uint32_t)c->pos;
    f->entries[f->n_entries++] = e;
    return SHEAF_OK;
}

static sheaf_status parse_alignment(cursor *c) {
    int64_t alignment = 32;
    sheaf_status s = gguf_file_int(c->f, "general.alignment", &alignment);
    if (s && s != SHEAF_E_NOT_FOUND) return s;
    if (alignment <= 0 || alignment > UINT32_MAX || (alignment & (alignment - 1)) != 0)
        return bad(c, SHEAF_E_FORMAT, "general.alignment is %lld, not a power of two that fits 32 bits",
                   (long long)alignment);
    c->f->alignment = (uint32_t)alignment;
    return SHEAF_OK;
}

static sheaf_status parse_keys(cursor *c, uint64_t n_keys) {
    gguf_file *f = c->f;
    for (uint64_t i = 0; i < n_keys; i++) {
        begin(c, "key", i);
        sheaf_status s = parse_entry(c);
        if (s) return s;
    }
    c->what = NULL;
    uint32_t twice[2] = {0};
    sheaf_status s = gguf_index_build(&f->keys, gguf_key_name, f, f->n_entries, twice);
    if (s == SHEAF_E_FORMAT) {
        char text[NAME_TEXT];
        return bad(c, s, "key %s occurs twice (numbers %u and %u)",
                   sheaf_str_text(gguf_key_name(f, twice[0]), text, sizeof text), twice[0], twice[1]);
    }
    if (s) return sheaf_error_context(s, "%s", f->path);
    return parse_alignment(c);
}

/* --- tensor infos --- */

/* Elements and bytes of a shape, refusing every wrap (case G01). */
static sheaf_status measure(const cursor *c, sheaf_gguf_tensor *t) {
    const gguf_foreign_type *foreign = sheaf_type_valid(t->type) ? NULL : gguf_foreign((uint32_t)t->type);
    int64_t block = foreign ? foreign->block : sheaf_type_block(t->type);
    size_t block_bytes = foreign ? (size_t)foreign->bytes : sheaf_type_bytes(t->type), row;
    int64_t rows = 1, elements;
    for (int d = 1; d < t->n_dims; d++)
        if (__builtin_mul_overflow(rows, t->ne[d], &rows))
            return bad(c, SHEAF_E_FORMAT, "number of elements wraps at dimension %d", d);
    if (__builtin_mul_overflow(rows, t->ne[0], &elements)) return bad(c, SHEAF_E_FORMAT, "number of elements wraps");
    if (t->ne[0] % block)
        return bad(c, SHEAF_E_FORMAT, "rows of %lld elements are no whole number of %s blocks (%lld)",
                   (long long)t->ne[0], sheaf_gguf_element_name(t->type), (long long)block);
    if (sheaf_mul_overflow((size_t)(t->ne[0] / block), block_bytes, &row) ||
        __builtin_mul_overflow((uint64_t)row, (uint64_t)rows, &t->bytes) || t->bytes > INT64_MAX)
        return bad(c, SHEAF_E_FORMAT, "number of bytes wraps");
    return SHEAF_OK;
}

static sheaf_status parse_shape(cursor *c, sheaf_gguf_tensor *t) {
    uint32_t n_dims;
    sheaf_status s = take_u32(c, &n_dims);
    if (s) return s;
    if (n_dims < 1 || n_dims > SHEAF_MAX_DIMS)
        return bad(c, SHEAF_E_FORMAT, "it has %u dimensions; 1 to %d are possible", n_dims, SHEAF_MAX_DIMS);
    t->n_dims = (int)n_dims;
    for (int d = 0; d < SHEAF_MAX_DIMS; d++) t->ne[d] = 1;
    for (int d = 0; d < t->n_dims; d++) {
        uint64_t ne;
        s = take_u64(c, &ne);
        if (s) return s;
        if (ne == 0 || ne > INT64_MAX) return bad(c, SHEAF_E_FORMAT, "dimension %d is %lld", d, (long long)ne);
        t->ne[d] = (int64_t)ne;
    }
    return SHEAF_OK;
}

static sheaf_status parse_tensor(cursor *c) {
    gguf_file *f = c->f;
    sheaf_gguf_tensor t = {0};
    uint32_t at, n, type = 0;
    sheaf_status s = take_string(c, &at, &n);
    if (s) return s;
    sheaf_str_text((sheaf_str){(const char *)f->head + at, n}, c->name, sizeof c->name);
    if (n >= SHEAF_MAX_NAME)
        return bad(c, SHEAF_E_UNSUPPORTED, "its name has %u bytes; at most %d are supported", n, SHEAF_MAX_NAME - 1);
    t.name.n = n;
    s = parse_shape(c, &t);
    if (!s) s = take_u32(c, &type);
    if (!s) s = take_u64(c, &t.offset);
    if (s) return s;
    if (!sheaf_type_valid(type) && !(f->foreign && gguf_foreign(type)))
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: type %d of tensor %s not supported", f->path, (int)type, c->name);
    t.type = (sheaf_type)type;
    s = measure(c, &t);
    if (s) return s;
    uint32_t cap = f->cap_tensors;
    s = room(c, &f->tensors, f->n_tensors, &f->cap_tensors, sizeof *f->tensors);
    if (!s) s = room(c, &f->name_at, f->n_tensors, &cap, sizeof *f->name_at);
    if (s) return s;
    f->name_at[f->n_tensors] = at;
    f->tensors[f->n_tensors++] = t;
    return SHEAF_OK;
}

/* Offsets become absolute, once the data's start is known; each tensor must lie inside the file. */
static sheaf_status place_tensor(const cursor *c, sheaf_gguf_tensor *t) {
    const gguf_file *f = c->f;
    if (t->offset % f->alignment)
        return bad(c, SHEAF_E_FORMAT, "offset %llu is no multiple of the alignment %u", LLU(t->offset), f->alignment);
    uint64_t begin_at, end;
    if (__builtin_add_overflow(f->data_offset, t->offset, &begin_at) ||
        __builtin_add_overflow(begin_at, t->bytes, &end))
        return bad(c, SHEAF_E_FORMAT, "offset %llu wraps", LLU(t->offset));
    if (end > f->size)
        return bad(c, SHEAF_E_FORMAT, "data ends at byte %llu, file has %llu (%llu missing)", LLU(end), LLU(f->size),
                   LLU(end - f->size));
    t->offset = begin_at;
    return SHEAF_OK;
}

/* Shards that were joined by `cat` look whole from the first header; the next header follows the data. */
static sheaf_status refuse_joined(cursor *c, uint64_t end) {
    gguf_file *f = c->f;
    uint64_t candidates[3] = {c->pos, end, 0};
    size_t padded;
    if (sheaf_align_up((size_t)end, f->alignment, &padded)) candidates[2] = padded;
    for (int i = 0; i < 3; i++) {
        uint8_t magic[4];
        if (candidates[i] == 0 || candidates[i] + 4 > f->size) continue;
        if (f->n_tensors && i == 0) continue; /* that is padding before data */
        if (gguf_file_pread(f, candidates[i], magic, 4) == 4 && !memcmp(magic, "GGUF", 4))
            return sheaf_fail(SHEAF_E_FORMAT,
                              "%s: another GGUF file begins at byte %llu: shards joined by cat cannot be read; keep "
                              "them apart or merge them",
                              f->path, LLU(candidates[i]));
    }
    return SHEAF_OK;
}

static sheaf_status parse_tensors(cursor *c, uint64_t n_tensors) {
    gguf_file *f = c->f;
    sheaf_status s = SHEAF_OK;
    for (uint64_t i = 0; i < n_tensors && !s; i++) {
        begin(c, "tensor", i);
        s = parse_tensor(c);
    }
    if (s) return s;
    gguf_file_trim(f, c->pos);
    size_t data;
    if (!sheaf_align_up((size_t)c->pos, f->alignment, &data)) return bad(c, SHEAF_E_FORMAT, "start of data wraps");
    f->data_offset = data;
    uint64_t end = n_tensors ? f->data_offset : c->pos;
    for (uint32_t i = 0; i < f->n_tensors && !s; i++) {
        sheaf_gguf_tensor *t = &f->tensors[i];
        begin(c, "tensor", i);
        t->name.s = (const char *)f->head + f->name_at[i];
        sheaf_str_text(t->name, c->name, sizeof c->name);
        s = place_tensor(c, t);
        if (!s && t->offset + t->bytes > end) end = t->offset + t->bytes;
    }
    sheaf_free(f->name_at);
    f->name_at = NULL;
    return s ? s : refuse_joined(c, end);
}

sheaf_status gguf_parse(gguf_file *f) {
    cursor c = {.f = f};
    uint64_t n_tensors = 0, n_keys = 0;
    sheaf_status s = parse_start(&c, &n_tensors, &n_keys);
    if (!s) s = parse_keys(&c, n_keys);
    if (!s) s = parse_tensors(&c, n_tensors);
    return s;
}
