/* The devices of all ranks as one list, in rank order: what a user is told, whichever rank tells it. */
#include <string.h>

#include "launch/launch.h"

/* What one rank says of itself. */
typedef struct rank_devices {
    int32_t n;
    char list[64]; /* --devices, as it counts for this rank */
    struct {
        char name[32], description[96];
        int32_t n_threads, numa;
    } device[SHEAF_MAX_DEVICES];
} rank_devices;

int session_ranks(const session *s) { return s->world ? sheaf_world_size(s->world) : 1; }

/* Where all ranks share a host they share its memory; of several hosts only this one is known. */
int session_threads(const session *s) {
    bool one_host = !s->world || sheaf_world_host_size(s->world) == sheaf_world_size(s->world);
    int n = 0;
    for (int i = 0; i < s->n_all; i++)
        if (one_host || (i >= s->first && i < s->first + s->n_devices)) n += s->all[i].n_threads;
    return n;
}

sheaf_status session_gather(const session *s, const void *mine, size_t n, void **all) {
    *all = sheaf_malloc(n * (size_t)session_ranks(s));
    if (!*all) return sheaf_fail(SHEAF_E_NO_MEMORY, "gathering: %zu bytes of every rank", n);
    return sheaf_world_allgather(s->world, mine, n, *all);
}

/* Appends the devices of rank r, with its name before theirs where there are several. More than any layout can name
 * are left out: loading a model over so many says what is wrong. */
static void append(session *s, int r, const rank_devices *d) {
    size_t used = strlen(s->where);
    if (s->world && sheaf_world_rank(s->world) == r) s->first = s->n_all;
    for (int i = 0; i < d->n && s->n_all < SHEAF_MAX_DEVICES; i++) {
        world_device *w = &s->all[s->n_all++];
        w->n_threads = d->device[i].n_threads;
        w->numa = d->device[i].numa;
        snprintf(w->description, sizeof w->description, "%s", d->device[i].description);
        if (session_ranks(s) > 1)
            snprintf(w->name, sizeof w->name, "rank%d.%s", r, d->device[i].name);
        else
            snprintf(w->name, sizeof w->name, "%s", d->device[i].name);
    }
    snprintf(s->where + used, sizeof s->where - used, "%s%s", used ? "," : "", d->list);
}

sheaf_status session_list_devices(session *s) {
    rank_devices mine = {.n = s->n_devices};
    void *all = NULL;
    int ranks = session_ranks(s);
    snprintf(mine.list, sizeof mine.list, "%s", s->list);
    for (int i = 0; i < s->n_devices; i++) {
        snprintf(mine.device[i].name, sizeof mine.device[i].name, "%s", s->devices[i]->name);
        snprintf(mine.device[i].description, sizeof mine.device[i].description, "%s", s->devices[i]->description);
        mine.device[i].n_threads = s->devices[i]->n_threads;
        mine.device[i].numa = s->devices[i]->numa;
    }
    sheaf_status status = session_gather(s, &mine, sizeof mine, &all);
    for (int r = 0; !status && r < ranks; r++) append(s, r, (const rank_devices *)all + r);
    sheaf_free(all);
    if (status || ranks == 1) return status;
    size_t used = strlen(s->where);
    snprintf(s->where + used, sizeof s->where - used, " on %d ranks", ranks);
    return SHEAF_OK;
}
