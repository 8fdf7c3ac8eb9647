/* The table of engines and the choice among them. A row: name, what it is, whether it keeps the
 * canonical order, and a predicate that says why it cannot serve. The order is the preference. */
#include "collectives/comm_internal.h"

#include <stdio.h>
#include <string.h>

static const engine *const engines[] = {&shm_engine, &mpi_engine, &hier_engine, &peer_engine, &ring_engine};
enum { N_ENGINES = sizeof engines / sizeof engines[0] };

bool sheaf_engine_row(int i, sheaf_engine_info *out) {
    if (i < 0 || i >= N_ENGINES) return false;
    *out = engines[i]->info;
    return true;
}

static const engine *by_name(const char *name) {
    for (int i = 0; i < N_ENGINES; i++) {
        if (strcmp(engines[i]->info.name, name) == 0) return engines[i];
    }
    return NULL;
}

sheaf_status engine_pin_check(const char *pin) {
    if (!pin[0] || by_name(pin)) return SHEAF_OK;
    sheaf_fail(SHEAF_E_ARGUMENT, "SHEAF_ALLREDUCE=%s: no such engine", pin);
    return sheaf_error_hint(SHEAF_E_ARGUMENT, "engines are shm, peer, ring, mpi, hier");
}

/* A pin speaks of sums only: the other kinds have one engine for each topology. */
static sheaf_status choose_pinned(const sheaf_comm *c, const sheaf_comm_desc *d, const char *pin, const engine **out,
                                  char *reason, size_t n) {
    const engine *e = by_name(pin);
    const char *no = e ? e->refuses(c, d) : "no such engine";
    if (no) return sheaf_fail(SHEAF_E_ARGUMENT, "SHEAF_ALLREDUCE=%s cannot serve '%s': %s", pin, d->name, no);
    *out = e;
    snprintf(reason, n, "pinned by SHEAF_ALLREDUCE");
    return SHEAF_OK;
}

sheaf_status engine_choose(const sheaf_comm *c, const sheaf_comm_desc *d, const char *pin, const engine **out,
                           char *reason, size_t n) {
    if (pin[0] && d->kind == SHEAF_COMM_ALLREDUCE) return choose_pinned(c, d, pin, out, reason, n);
    size_t used = 0;
    reason[0] = 0;
    for (int i = 0; i < N_ENGINES; i++) {
        const char *no = engines[i]->refuses(c, d);
        if (!no) {
            *out = engines[i];
            snprintf(reason + used, n - used, "%s%s", used ? "; so " : "", engines[i]->info.description);
            return SHEAF_OK;
        }
        int more = snprintf(reason + used, n - used, "%s%s: %s", used ? "; " : "", engines[i]->info.name, no);
        if (more > 0) used += (size_t)more < n - used ? (size_t)more : n - used - 1;
    }
    return sheaf_fail(SHEAF_E_UNSUPPORTED, "no engine for '%s': %s", d->name, reason);
}
