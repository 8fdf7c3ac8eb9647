/* Quantizing a file: the new file's metadata and infos, then the work, then its name. */
#include "models/quantize_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { BLOCK_FORMATS = 2 }; /* general.quantization_version: of the blocks as they are laid out since GGUF */

/* `path` must be no file that is read: it would be gone, or change below us. */
static sheaf_status not_an_input(const sheaf_gguf *g, const char *path, const sheaf_imatrix *m) {
    struct stat out, in;
    if (stat(path, &out) != 0) return SHEAF_OK;
    for (int i = 0; i < sheaf_gguf_shards(g); i++)
        if (sheaf_gguf_fd(g, i) >= 0 && fstat(sheaf_gguf_fd(g, i), &in) == 0 && in.st_dev == out.st_dev &&
            in.st_ino == out.st_ino)
            return sheaf_fail(SHEAF_E_ARGUMENT, "quantizing: %s: it is the input too", path);
    if (m && stat(sheaf_imatrix_path(m), &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        return sheaf_fail(SHEAF_E_ARGUMENT, "quantizing: %s: it is the importance matrix too", path);
    return SHEAF_OK;
}

static bool of_shards(sheaf_str key) {
    static const char *const keys[] = {"split.no", "split.count", "split.tensors.count"};
    for (int i = 0; i < 3; i++)
        if (key.n == strlen(keys[i]) && !memcmp(key.s, keys[i], key.n)) return true;
    return false;
}

static sheaf_status put_imatrix(sheaf_gguf_writer *w, const sheaf_imatrix *m) {
    sheaf_status s = sheaf_gguf_put_str(w, "quantize.imatrix.file", sheaf_imatrix_path(m));
    if (!s && *sheaf_imatrix_dataset(m))
        s = sheaf_gguf_put_str(w, "quantize.imatrix.dataset", sheaf_imatrix_dataset(m));
    if (!s) s = sheaf_gguf_put_u32(w, "quantize.imatrix.entries_count", (uint32_t)sheaf_imatrix_entries(m));
    if (!s && sheaf_imatrix_chunks(m))
        s = sheaf_gguf_put_u32(w, "quantize.imatrix.chunks_count", sheaf_imatrix_chunks(m));
    return s;
}

static sheaf_status put_header(sheaf_gguf_writer *w, const sheaf_gguf *g, const sheaf_quantize_row *plan,
                               const sheaf_quantize_options *o, const sheaf_imatrix *m) {
    sheaf_status s = SHEAF_OK;
    for (int64_t i = 0; i < sheaf_gguf_n_keys(g) && !s; i++)
        if (!of_shards(sheaf_gguf_key(g, i))) s = sheaf_gguf_put_from(w, g, i);
    if (!s && o->mix) s = sheaf_gguf_put_u32(w, "general.quantization_version", BLOCK_FORMATS);
    if (!s && o->mix) s = sheaf_gguf_put_u32(w, "general.file_type", o->mix->file_type);
    if (!s && o->mix && m) s = put_imatrix(w, m);
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(g) && !s; i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(g, i);
        s = sheaf_gguf_add(w, t->name, plan[i].to, t->n_dims, t->ne);
    }
    return s;
}

sheaf_status sheaf_quantize(const sheaf_gguf *g, const sheaf_quantize_row *plan, const char *path,
                            const sheaf_quantize_options *o, const sheaf_imatrix *m) {
    sheaf_gguf_writer *w = NULL;
    sheaf_status s = not_an_input(g, path, m);
    if (!s) s = sheaf_gguf_writer_new(&w);
    if (!s) s = put_header(w, g, plan, o, m);
    if (!s) s = sheaf_gguf_create(w, path);
    if (!s) s = quantize_work(g, plan, w, o, m);
    if (!s) s = sheaf_gguf_unchanged(g);
    if (!s) s = sheaf_gguf_commit(w);
    sheaf_gguf_writer_free(w);
    return s;
}
