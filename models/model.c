/* Loading a model, top to bottom: file, architecture, numbers, tensors, devices, layouts, bytes. */
#include "models/model_internal.h"

static sheaf_status open_file(sheaf_model *m, const char *path) {
    sheaf_status s = sheaf_gguf_open(path, &m->gguf);
    if (s) return s;
    m->path = sheaf_gguf_path(m->gguf, 0);
    sheaf_str arch;
    s = sheaf_gguf_get_str(m->gguf, "general.architecture", &arch);
    return s ? s : model_arch_find(arch, m->path, &m->arch);
}

/* A file without a vocabulary still computes (benchmarks, tests); one that is wrong is refused. */
static sheaf_status open_vocabulary(sheaf_model *m, const sheaf_model_options *o) {
    sheaf_tokenizer_options t = {.force = o->force_pretokenizer};
    sheaf_status s = sheaf_tokenizer_new(m->gguf, &t, &m->tokenizer);
    if (s && s != SHEAF_E_NOT_FOUND) return s;
    if (!s && sheaf_tokenizer_size(m->tokenizer) > m->hp.n_vocab)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: the vocabulary has %d tokens, the embedding %d rows", m->path,
                          sheaf_tokenizer_size(m->tokenizer), m->hp.n_vocab);
    m->hp.n_tokens = s ? m->hp.n_vocab : sheaf_tokenizer_size(m->tokenizer);
    if (sheaf_gguf_get_str(m->gguf, "tokenizer.chat_template", &m->chat_template))
        m->chat_template = (sheaf_str){NULL, 0};
    sheaf_error_clear();
    return SHEAF_OK;
}

sheaf_status sheaf_model_load(const char *path, const sheaf_model_options *o, sheaf_model **out) {
    *out = NULL;
    sheaf_model *m = sheaf_calloc(1, sizeof *m);
    if (!m) return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory", path);
    sheaf_status s = open_file(m, path);
    if (!s) s = model_read_hparams(m);
    if (!s) s = open_vocabulary(m, o);
    if (!s) s = model_declare_weights(m);
    s = follow_agree(o->world, s); /* what follows meets the other ranks */
    if (!s) s = model_open_devices(m, o);
    if (!s) s = model_place_tensors(m, o);
    if (!s) s = model_load_weights(m, o);
    s = follow_agree(o->world, s);
    if (s) {
        sheaf_error_box box; /* freeing may set other texts */
        sheaf_error_save(&box, s);
        sheaf_model_free(m);
        return sheaf_error_restore(&box);
    }
    *out = m;
    return SHEAF_OK;
}

void sheaf_model_free(sheaf_model *m) {
    if (!m) return;
    for (int32_t i = m->n_buffers; i > 0; i--) sheaf_buffer_free(m->buffers[i - 1]);
    if (m->is_meta) sheaf_meta_free(m->device);
    sheaf_free(m->buffers);
    sheaf_policy_free(m->policy);
    sheaf_free(m->by_name);
    sheaf_free(m->kv_name);
    sheaf_free(m->placement);
    sheaf_free(m->named);
    sheaf_arena_free(m->places);
    sheaf_free(m->layer);
    sheaf_free(m->windowed);
    sheaf_free(m->layers);
    sheaf_free(m->source);
    sheaf_free(m->weight);
    sheaf_arena_free(m->arena);
    sheaf_tokenizer_free(m->tokenizer);
    sheaf_gguf_close(m->gguf);
    sheaf_free(m);
}

const sheaf_hparams *sheaf_model_hparams(const sheaf_model *m) { return &m->hp; }
const sheaf_tokenizer *sheaf_model_tokenizer(const sheaf_model *m) { return m->tokenizer; }
sheaf_str sheaf_model_chat_template(const sheaf_model *m) { return m->chat_template; }
const sheaf_gguf *sheaf_model_gguf(const sheaf_model *m) { return m->gguf; }
sheaf_device *sheaf_model_device(const sheaf_model *m) { return m->device; }
