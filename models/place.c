/* Where a model's tensors live: the device that all of them are on, and from the split table a layout
 * for each. The KV caches are placed with the weights, because a group is cut once; only their length is
 * a context's own matter, and a layout along heads does not depend on it. */
#include "models/model_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the device ---------------------------------------------------------------------------------------- */

static sheaf_status check_devices(const sheaf_model *m, const sheaf_model_options *o, int world) {
    if (o->n_devices < 1 || o->n_devices > SHEAF_MAX_DEVICES)
        return sheaf_fail(SHEAF_E_ARGUMENT, "%s: %d devices, 1 to %d are possible", m->path, o->n_devices,
                          SHEAF_MAX_DEVICES);
    if (o->split_mode == SHEAF_SPLIT_LAYER)
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: splitting by layer is not supported yet; tensor and none are",
                          m->path);
    if (o->split_mode == SHEAF_SPLIT_NONE && world > 1)
        return sheaf_fail(SHEAF_E_ARGUMENT, "%s: split mode none runs on one device, but %d processes were started",
                          m->path, world);
    return SHEAF_OK;
}

sheaf_status model_open_devices(sheaf_model *m, const sheaf_model_options *o) {
    int world = o->world ? sheaf_world_size(o->world) : 1;
    sheaf_status s = check_devices(m, o, world);
    if (s) return s;
    m->world = o->world;
    m->n_members = o->split_mode == SHEAF_SPLIT_NONE ? 1 : o->n_devices;
    memcpy(m->members, o->devices, (size_t)m->n_members * sizeof(sheaf_device *));
    m->no_data = o->no_data;
    m->is_meta = m->n_members > 1 || world > 1;
    if (m->is_meta) {
        s = sheaf_meta_new(o->devices_name ? o->devices_name : "meta", m->members, m->n_members, o->world, &m->device);
        if (s) return s;
        m->n_world_devices = sheaf_meta_world_devices(m->device);
        sheaf_meta_set_policy(m->device, model_layout_of, m);
    } else {
        m->device = m->members[0];
        m->n_world_devices = 1;
    }
    return sheaf_host_device_open(o->registry, m->members, m->n_members, &m->host);
}

/* Bytes of member i's shard of t: all of it where nothing is cut. */
static size_t shard_bytes(const sheaf_model *m, int i, const sheaf_tensor *t) {
    const sheaf_placement *p = m->is_meta ? model_placement_of(m, t->name) : NULL;
    int64_t ne[SHEAF_MAX_DIMS];
    size_t bytes;
    if (!p) return sheaf_nbytes(t);
    sheaf_layout_local_ne(&p->layout, sheaf_meta_first(m->device) + i, t->ne, ne);
    bytes = sheaf_row_bytes(t->type, ne[0]);
    for (int k = 1; k < SHEAF_MAX_DIMS; k++)
        if (sheaf_mul_overflow(bytes, (size_t)ne[k], &bytes)) bytes = SIZE_MAX;
    return bytes;
}

sheaf_status model_need_memory(const sheaf_model *m, const sheaf_arena *tensors) {
    for (int i = 0; i < m->n_members; i++) {
        sheaf_device *d = m->members[i];
        size_t total = 0, free_bytes = 0, bytes = 0;
        for (const sheaf_tensor *t = sheaf_arena_next(tensors, NULL); t; t = sheaf_arena_next(tensors, t))
            if (sheaf_add_overflow(bytes, shard_bytes(m, i, t), &bytes)) bytes = SIZE_MAX;
        sheaf_status s = d->iface->memory(d, &total, &free_bytes);
        if (s) return s;
        if (bytes > free_bytes)
            return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: %.1f MiB needed, %.1f MiB free", d->name, (double)bytes / 0x1p20,
                              (double)free_bytes / 0x1p20);
    }
    return SHEAF_OK;
}

/* --- the policy ---------------------------------------------------------------------------------------- */

/* Numbers that the file may leave out come from the hyper-parameters, which have the defaults. */
static bool known_key(const sheaf_hparams *h, const char *key, int64_t il, int64_t *out) {
    const sheaf_layer_hparams *l = &h->layer[il < 0 || il >= h->n_layer ? 0 : il];
    const struct {
        const char *key;
        int64_t value;
    } known[] = {
        {"attention.head_count", l->n_head}, {"attention.head_count_kv", l->n_head_kv},
        {"attention.key_length", h->head_k}, {"attention.value_length", h->head_v},
        {"embedding_length", h->n_embd},     {"feed_forward_length", l->n_ff},
        {"block_count", h->n_layer},         {"vocab_size", h->n_vocab},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(key, known[i].key)) {
            *out = known[i].value;
            return true;
        }
    return false;
}

/* sheaf_policy_env.get: "attention.head_count" or "attention.head_count[3]". */
static sheaf_status get_key(void *ctx, const char *key, int64_t *out) {
    const sheaf_model *m = ctx;
    char plain[96];
    int64_t index = -1;
    snprintf(plain, sizeof plain, "%s", key);
    char *bracket = strchr(plain, '[');
    if (bracket) {
        *bracket = 0;
        index = strtol(bracket + 1, NULL, 10);
    }
    if (known_key(&m->hp, plain, index, out)) return SHEAF_OK;
    return model_key_i64(m, plain, index, out);
}

static sheaf_status make_policy(sheaf_model *m, const sheaf_model_options *o) {
    if (o->split_table) return sheaf_policy_new(o->split_table, o->split_table_bytes, &m->policy);
    return sheaf_policy_builtin(m->arch->name, &m->policy);
}

/* All tensors as the policy sees them: weights, then cache_k and cache_v of every layer [M2]. */
static sheaf_status name_tensors(sheaf_model *m) {
    size_t layers = (size_t)m->hp.n_layer;
    m->n_named = m->n_weights + 2 * m->hp.n_layer;
    m->named = sheaf_calloc((size_t)m->n_named, sizeof *m->named);
    m->placement = sheaf_calloc((size_t)m->n_named, sizeof *m->placement);
    m->kv_name = sheaf_calloc(2 * layers, sizeof *m->kv_name);
    m->by_name = sheaf_malloc((size_t)m->n_named * sizeof *m->by_name);
    if (!m->named || !m->placement || !m->kv_name || !m->by_name)
        return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for %d placements", m->path, m->n_named);
    for (int32_t i = 0; i < m->n_weights; i++) {
        m->named[i] = (sheaf_named){.name = m->weight[i]->name, .type = m->weight[i]->type};
        memcpy(m->named[i].ne, m->weight[i]->ne, sizeof m->named[i].ne);
    }
    for (int32_t i = 0; i < 2 * m->hp.n_layer; i++) {
        bool value = i % 2;
        snprintf(m->kv_name[i], SHEAF_MAX_NAME, "blk.%d.cache_%c", i / 2, value ? 'v' : 'k');
        int64_t row = (int64_t)m->hp.layer[i / 2].n_head_kv * (value ? model_cached_v(m) : m->hp.head_k);
        m->named[m->n_weights + i] =
            (sheaf_named){.name = m->kv_name[i], .type = SHEAF_F16, .ne = {row, m->hp.n_ctx_train, 1, 1}};
    }
    return SHEAF_OK;
}

/* Shell sort: libc's qsort has no context argument, and qsort_r differs between systems. */
static void sort_names(sheaf_model *m) {
    int32_t n = m->n_named, *v = m->by_name;
    for (int32_t i = 0; i < n; i++) v[i] = i;
    for (int32_t gap = n / 2; gap > 0; gap /= 2)
        for (int32_t i = gap; i < n; i++) {
            int32_t moving = v[i], at = i;
            for (; at >= gap && strcmp(m->named[v[at - gap]].name, m->named[moving].name) > 0; at -= gap)
                v[at] = v[at - gap];
            v[at] = moving;
        }
}

sheaf_status model_place_tensors(sheaf_model *m, const sheaf_model_options *o) {
    if (o->tensor_split && o->n_tensor_split != m->n_world_devices)
        return sheaf_fail(SHEAF_E_ARGUMENT, "%s: %d shares for %d devices", m->path, o->n_tensor_split,
                          m->n_world_devices);
    if (o->tensor_split && m->is_meta) sheaf_meta_set_shares(m->device, o->tensor_split);
    sheaf_status s = make_policy(m, o);
    if (!s) s = name_tensors(m);
    if (!s) s = sheaf_arena_new(64 << 10, &m->places);
    if (s) return s;
    sort_names(m);
    /* One device is placed too: the order of addition (segments) must not depend on how many there are. */
    sheaf_policy_env env = {
        .get = get_key,
        .ctx = m,
        .weights = o->tensor_split,
        .n_devices = m->n_world_devices,
        .pack_rows = m->device->buffer_type->pack_rows,
    };
    s = sheaf_policy_place(m->policy, &env, m->named, m->n_named, m->places, m->placement, &m->shares);
    return s ? sheaf_error_context(s, "%s", m->path) : s;
}

const sheaf_shares *sheaf_model_shares(const sheaf_model *m) { return &m->shares; }

const sheaf_placement *model_placement_of(const sheaf_model *m, const char *name) {
    int32_t lo = 0, hi = m->n_named - 1;
    while (lo <= hi) {
        int32_t mid = lo + (hi - lo) / 2, order = strcmp(name, m->named[m->by_name[mid]].name);
        if (order == 0) return &m->placement[m->by_name[mid]];
        if (order < 0) {
            hi = mid - 1;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

sheaf_status model_layout_of(void *model, sheaf_arena *a, const sheaf_tensor *t, sheaf_layout *out) {
    (void)a; /* runs lie in the model, which outlives every buffer of it */
    const sheaf_placement *p = model_placement_of(model, t->name);
    if (!p) return sheaf_fail(SHEAF_E_NOT_FOUND, "no layout for tensor %s", t->name);
    *out = p->layout;
    return SHEAF_OK;
}
