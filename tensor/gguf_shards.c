/* From a path to an opened GGUF: one file, or all shards of a split set.
 *
 * A split set is files <prefix>-00001-of-0000N.gguf. Each says split.no (from 0!), split.count and
 * split.tensors.count (over all of them); only number 0 has the model's keys. Any shard may be given:
 * its own numbers name the others, which are opened in order and must agree (case G02).
 * Does not parse headers: gguf_parse.c does. */
#include "tensor/gguf_internal.h"

#include <stdio.h>
#include <string.h>

typedef struct split {
    int64_t no, count, tensors;
} split;

enum { MAX_SHARDS = 65535, TAIL = 20 /* "-00001-of-00003.gguf" */ };

/* The split keys of a file; count 0 or 1 when it stands alone. */
static sheaf_status split_of(const gguf_file *f, split *out) {
    *out = (split){.tensors = -1};
    sheaf_status s = gguf_file_int(f, "split.count", &out->count);
    if (s == SHEAF_E_NOT_FOUND || (!s && out->count <= 1 && out->count >= 0)) {
        out->count = 1;
        return SHEAF_OK;
    }
    if (s) return s;
    s = gguf_file_int(f, "split.no", &out->no);
    if (s == SHEAF_E_NOT_FOUND)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: split.count is %lld but there is no split.no", f->path,
                          (long long)out->count);
    if (s) return s;
    if (out->count < 0 || out->count > MAX_SHARDS || out->no < 0 || out->no >= out->count)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: split.no %lld of split.count %lld is not possible", f->path,
                          (long long)out->no, (long long)out->count);
    s = gguf_file_int(f, "split.tensors.count", &out->tensors);
    return s == SHEAF_E_NOT_FOUND ? SHEAF_OK : s;
}

static bool digits(const char *s, int *out) {
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        *out = *out * 10 + (s[i] - '0');
    }
    return true;
}

/* Length of the prefix in `path` and the numbers of its name (number from 1). */
static bool split_name(const char *path, size_t *prefix, int *number, int *count) {
    size_t n = strlen(path);
    if (n < TAIL) return false;
    const char *tail = path + n - TAIL;
    *prefix = n - TAIL;
    return tail[0] == '-' && digits(tail + 1, number) && !memcmp(tail + 6, "-of-", 4) && digits(tail + 10, count) &&
           !strcmp(tail + 15, ".gguf");
}

/* The name of the file that was given must be the one its own numbers ask for. */
static sheaf_status check_name(const gguf_file *f, const split *sp, size_t *prefix) {
    int number, count;
    if (!split_name(f->path, prefix, &number, &count))
        return sheaf_fail(SHEAF_E_FORMAT,
                          "%s: is shard %lld of %lld, but its name does not end in -%05lld-of-%05lld.gguf, so the "
                          "others cannot be found",
                          f->path, (long long)sp->no + 1, (long long)sp->count, (long long)sp->no + 1,
                          (long long)sp->count);
    if (count != sp->count)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: expected %d shards by its name, found split.count %lld", f->path, count,
                          (long long)sp->count);
    if (number != sp->no + 1)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: expected shard %d by its name (split.no %d), found split.no %lld",
                          f->path, number, number - 1, (long long)sp->no);
    return SHEAF_OK;
}

/* Opens and validates shard `no`, which must agree with the first one opened. */
static sheaf_status open_sibling(gguf_file *f, const gguf_file *first, size_t prefix, const split *want, int no) {
    size_t size = prefix + TAIL + 1;
    char *path = sheaf_malloc(size);
    if (!path) return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for a name", first->path);
    snprintf(path, size, "%.*s-%05d-of-%05d.gguf", (int)prefix, first->path, no + 1, (int)want->count);
    sheaf_status s = gguf_file_open(f, path);
    sheaf_free(path);
    if (s) return sheaf_error_context(s, "shard %d of %lld", no + 1, (long long)want->count);
    split sp;
    f->foreign = first->foreign;
    s = gguf_parse(f);
    if (!s) s = split_of(f, &sp);
    if (s) return s;
    if (sp.count != want->count)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: expected split.count %lld as in %s, found %lld", f->path,
                          (long long)want->count, first->path, (long long)sp.count);
    if (sp.no != no)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: expected split.no %d by its name, found %lld", f->path, no,
                          (long long)sp.no);
    if (sp.tensors != want->tensors)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: expected split.tensors.count %lld as in %s, found %lld", f->path,
                          (long long)want->tensors, first->path, (long long)sp.tensors);
    return SHEAF_OK;
}

static sheaf_status add_file(sheaf_gguf *g, gguf_file *f) {
    gguf_file *grown = sheaf_realloc(g->files, (size_t)(g->n_files + 1) * sizeof *grown);
    if (!grown) return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for shard %d", f->path, g->n_files + 1);
    g->files = grown;
    g->files[g->n_files++] = *f;
    *f = (gguf_file){.fd = -1}; /* moved */
    return SHEAF_OK;
}

/* Collects shards 0 .. count-1 around the one that is open already. */
static sheaf_status gather(sheaf_gguf *g, gguf_file *first, const split *sp) {
    size_t prefix = 0;
    sheaf_status s = sp->count > 1 ? check_name(first, sp, &prefix) : SHEAF_OK;
    gguf_file origin = *first; /* for names in messages: *first may move into g */
    for (int no = 0; no < sp->count && !s; no++) {
        if (no == sp->no) {
            s = add_file(g, first);
            continue;
        }
        gguf_file f = {.fd = -1};
        s = open_sibling(&f, &origin, prefix, sp, no);
        if (!s) s = add_file(g, &f);
        gguf_file_close(&f);
    }
    return s;
}

/* One list of tensors over all shards, hashed by name. */
static sheaf_status join_tensors(sheaf_gguf *g, const split *sp) {
    uint64_t n = 0;
    for (int i = 0; i < g->n_files; i++) n += g->files[i].n_tensors;
    if (sp->count > 1 && sp->tensors >= 0 && n != (uint64_t)sp->tensors)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: expected %lld tensors over all shards (split.tensors.count), found %llu",
                          g->files[0].path, (long long)sp->tensors, (unsigned long long)n);
    if (n > UINT32_MAX)
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: %llu tensors", g->files[0].path, (unsigned long long)n);
    g->tensors = sheaf_malloc(n ? (size_t)n * sizeof *g->tensors : 1);
    if (!g->tensors)
        return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for %llu tensor infos", g->files[0].path,
                          (unsigned long long)n);
    for (int i = 0; i < g->n_files; i++) {
        gguf_file *f = &g->files[i];
        for (uint32_t j = 0; j < f->n_tensors; j++) {
            f->tensors[j].shard = i;
            g->tensors[g->n_tensors++] = f->tensors[j];
        }
        sheaf_free(f->tensors);
        f->tensors = NULL;
    }
    uint32_t twice[2] = {0};
    sheaf_status s = gguf_index_build(&g->names, gguf_tensor_name, g->tensors, g->n_tensors, twice);
    if (s != SHEAF_E_FORMAT) return s;
    char text[160];
    const sheaf_gguf_tensor *a = &g->tensors[twice[0]], *b = &g->tensors[twice[1]];
    sheaf_str_text(a->name, text, sizeof text);
    if (a->shard == b->shard) return sheaf_fail(s, "%s: tensor %s occurs twice", g->files[a->shard].path, text);
    return sheaf_fail(s, "%s: tensor %s is also in %s", g->files[b->shard].path, text, g->files[a->shard].path);
}

static sheaf_status assemble(gguf_file *first, sheaf_gguf **out) {
    split sp;
    sheaf_gguf *g = sheaf_calloc(1, sizeof *g);
    if (!g) {
        sheaf_status s = sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory", first->path);
        gguf_file_close(first);
        return s;
    }
    sheaf_status s = gguf_parse(first);
    if (!s) s = split_of(first, &sp);
    if (!s && sp.count > 1 && first->fd < 0)
        s = sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: shard %lld of %lld needs its files", first->path, (long long)sp.no + 1,
                       (long long)sp.count);
    if (!s) s = gather(g, first, &sp);
    if (!s) s = join_tensors(g, &sp);
    if (s) {
        sheaf_gguf_close(g);
        gguf_file_close(first);
        return s;
    }
    *out = g;
    return SHEAF_OK;
}

sheaf_status sheaf_gguf_open(const char *path, sheaf_gguf **out) {
    *out = NULL;
    gguf_file first;
    sheaf_status s = gguf_file_open(&first, path);
    return s ? s : assemble(&first, out);
}

sheaf_status sheaf_gguf_open_to_look(const char *path, sheaf_gguf **out) {
    *out = NULL;
    gguf_file first;
    sheaf_status s = gguf_file_open(&first, path);
    first.foreign = true;
    return s ? s : assemble(&first, out);
}

sheaf_status sheaf_gguf_open_memory(const void *bytes, size_t size, sheaf_gguf **out) {
    *out = NULL;
    gguf_file first;
    sheaf_status s = gguf_file_memory(&first, bytes, size);
    return s ? s : assemble(&first, out);
}

void sheaf_gguf_close(sheaf_gguf *g) {
    if (!g) return;
    gguf_index_free(&g->names);
    sheaf_free(g->tensors);
    for (int i = 0; i < g->n_files; i++) gguf_file_close(&g->files[i]);
    sheaf_free(g->files);
    sheaf_free(g);
}
