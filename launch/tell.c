/* -v: what was chosen for a run, and why, before it begins. Every rank tells of its own memory, the first of the rest.
 */
#include <string.h>

#include "launch/launch.h"

static double mib(size_t bytes) { return (double)bytes / (1 << 20); }

static void tell_devices(const session *s) {
    sheaf_log(SHEAF_LOG_INFO, "devices: %s", s->where);
    for (int i = 0; i < s->n_devices; i++)
        sheaf_log(SHEAF_LOG_INFO, "device %s: %d thread%s, %s", s->all[s->first + i].name, s->devices[i]->n_threads,
                  s->devices[i]->n_threads == 1 ? "" : "s", s->devices[i]->description);
}

static void tell_model(const session *s, const options *o) {
    const sheaf_hparams *h = sheaf_model_hparams(s->model);
    sheaf_log(SHEAF_LOG_INFO, "model: %s, %.2f MiB of weights in %.0f ms, architecture %s", h->type, mib(h->bytes),
              s->load_ms, h->arch);
    if (s->n_all == 1)
        sheaf_log(SHEAF_LOG_INFO, "split: none, there is one device");
    else
        sheaf_log(SHEAF_LOG_INFO, "split: tensor over %d devices, %s shares, %s split table", s->n_all,
                  o->n_share ? "given" : "equal", o->split_table ? o->split_table : "built-in");
}

/* The engine of the first sum of the plan that is ready, and the reason for it. */
static void tell_engine(const session *s) {
    sheaf_backend *b = NULL;
    const sheaf_prepared *p;
    for (int i = 0; (p = sheaf_sched_prepared(sheaf_context_sched(s->context), i, &b)); i++) {
        if (!sheaf_meta_is(b->device)) continue;
        sheaf_plan_info info = sheaf_plan_get_info(sheaf_meta_plan(p));
        sheaf_log(SHEAF_LOG_INFO, "plan: %d pieces, %d collectives, %d reshards", info.n_pieces, info.n_collectives,
                  info.n_reshards);
        if (info.n_collectives)
            sheaf_log(SHEAF_LOG_INFO, "collectives: the first is %s: %s", info.collectives[0].tensor,
                      info.collectives[0].reason);
        return;
    }
}

static void tell_context(const session *s, const options *o) {
    sheaf_log(SHEAF_LOG_INFO, "context: %d tokens (the model was trained for %d), K cache %s, V cache %s",
              sheaf_n_ctx(s->context), sheaf_model_hparams(s->model)->n_ctx_train, o->type_k ? o->type_k : "f16",
              o->type_v ? o->type_v : "f16");
}

static void tell_memory(const session *s) {
    sheaf_memory_row m;
    for (int i = 0; i < s->n_devices; i++) {
        if (!sheaf_context_memory(s->context, i, &m)) continue;
        sheaf_log(SHEAF_LOG_INFO, "memory of %s: weights %.2f MiB, KV %.2f MiB, compute %.2f MiB, staging %.2f MiB",
                  s->all[s->first + i].name, mib(m.weight_bytes), mib(m.kv_bytes), mib(m.compute_bytes),
                  mib(m.staging_bytes));
    }
}

void session_tell(const session *s, const options *o) {
    if (sheaf_log_get_level() < SHEAF_LOG_INFO) return;
    if (session_leads(s)) {
        tell_devices(s);
        tell_model(s, o);
        tell_context(s, o);
        tell_engine(s);
    }
    tell_memory(s);
}
