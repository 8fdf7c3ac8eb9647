/* The world: alone, or one rank of P that MPI connects.
 *
 * Owns the loaded MPI module, the lock under which it is called, the links and the notices. World-wide
 * calls (broadcast, allgather, barrier) are made of the same polled messages as collectives, so none of
 * them hangs: each ends on time, or on another rank's notice. Two waits have no limit of time: for rank 0's
 * broadcast (a follower waits for the next batch however long a user thinks), which a notice still ends, and MPI's own
 * start and end.
 *
 * Who calls MPI: whichever thread has something to wait for, polling under `lock`; never a thread of its
 * own. A progress thread would cost two wake-ups a sum, on every token, to hide nothing: the caller has to wait anyway.
 */
#include "collectives/meet.h"
#include "collectives/mpi/module.h"
#include "collectives/world_internal.h"
#include "tensor/settings.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_RANKS = 64, TAG_NOTICE = 1, TAG_FAREWELL = 0x7000, PIECE = 1 << 28, FAREWELL_MS = 2000 };

/* One rank tells the others that a link (0: all) failed there. */
typedef struct notice {
    int32_t from, link, epoch, status;
    char text[496];
} notice;

struct link {
    sheaf_world *world;
    struct link *next;
    int32_t id, epoch;
    uint64_t comm; /* MPI's */
    link_failed_fn failed;
    void *ctx;
    notice out; /* being sent; one an epoch */
    uint64_t out_request[MAX_RANKS];
    bool out_pending[MAX_RANKS];
};

struct sheaf_world {
    int rank, size, host_rank, host_size;
    void *library;
    const sheaf_mpi_api *api;
    pthread_mutex_t lock;
    struct link *own;   /* for world-wide calls */
    struct link *links; /* communicators' */
    int32_t next_link;
    unsigned calls; /* world-wide calls so far: the tag */
    uint64_t notices;
    notice in;
    uint64_t in_request;
    bool listening;
    atomic_bool dead;
    sheaf_error_box why;
    bool (*stop)(void *ctx); /* asked while waiting without a limit of time */
    void *stop_ctx;
};

static sheaf_status mpi_fail(const sheaf_world *w, int code, const char *what) {
    char text[256];
    w->api->error_text(code, text, sizeof text);
    return sheaf_fail(SHEAF_E_PEER, "%s: %s", what, text);
}

/* --- notices, all under the lock ------------------------------------------------------------------- */

static void listen_for_notice(sheaf_world *w) {
    w->listening = w->api->receive(w->notices, &w->in, sizeof w->in, SHEAF_MPI_ANY, TAG_NOTICE, &w->in_request) == 0;
}

static void hear(sheaf_world *w, const notice *n) {
    sheaf_error_box before;
    sheaf_error_save(&before, SHEAF_OK);
    sheaf_status s = n->status == SHEAF_E_CANCELLED ? SHEAF_E_CANCELLED : SHEAF_E_PEER;
    sheaf_fail(s, "rank %d: %.*s", (int)n->from, (int)strnlen(n->text, sizeof n->text), n->text);
    if (n->link == 0 && !atomic_load(&w->dead)) {
        sheaf_error_save(&w->why, s);
        atomic_store(&w->dead, true);
    }
    for (struct link *l = w->links; l; l = l->next) {
        if (n->link == 0 || (l->id == n->link && l->epoch == n->epoch)) l->failed(l->ctx, s);
    }
    sheaf_error_restore(&before);
}

static void poll_notices(sheaf_world *w) {
    bool done = false;
    if (!w->listening || w->api->test(&w->in_request, &done) || !done) return;
    notice n = w->in;
    listen_for_notice(w);
    hear(w, &n);
}

static void tell(struct link *l, int32_t id, sheaf_status s) {
    sheaf_world *w = l->world;
    l->out = (notice){.from = w->rank, .link = id, .epoch = l->epoch, .status = s};
    snprintf(l->out.text, sizeof l->out.text, "%s", sheaf_error());
    for (int k = 0; k < w->size; k++) {
        if (k == w->rank || l->out_pending[k]) continue;
        l->out_pending[k] = w->api->send(w->notices, &l->out, sizeof l->out, k, TAG_NOTICE, &l->out_request[k]) == 0;
    }
}

/* True when all notices of the link are on their way (their memory is free). */
static bool told(struct link *l) {
    bool all = true;
    for (int k = 0; k < l->world->size; k++) {
        bool done = true;
        if (l->out_pending[k] && l->world->api->test(&l->out_request[k], &done) == 0) l->out_pending[k] = !done;
        all = all && !l->out_pending[k];
    }
    return all;
}

void link_notify(struct link *l, sheaf_status s) {
    pthread_mutex_lock(&l->world->lock);
    tell(l, l->id, s);
    told(l); /* a first push: small messages leave at once */
    pthread_mutex_unlock(&l->world->lock);
}

/* --- messages ----------------------------------------------------------------------------------------- */

static sheaf_status start_messages(struct link *l, link_message *msg, int n, int tag, const char *what) {
    const sheaf_mpi_api *api = l->world->api;
    for (int pass = 0; pass < 2; pass++) { /* receives first: their messages then land where they belong */
        for (int k = 0; k < n; k++) {
            link_message *m = &msg[k];
            if (m->receive != (pass == 0)) continue;
            m->started = false;
            m->done = m->size == 0;
            if (m->done) continue;
            int e = m->receive ? api->receive(l->comm, m->bytes, m->size, m->rank, tag, &m->request)
                               : api->send(l->comm, m->bytes, m->size, m->rank, tag, &m->request);
            if (e) return mpi_fail(l->world, e, what);
            m->started = true;
        }
    }
    return SHEAF_OK;
}

/* How many are not done, -1 with *s set on an error. */
static int test_messages(struct link *l, link_message *msg, int n, const char *what, sheaf_status *s) {
    int open = 0;
    for (int k = 0; k < n; k++) {
        link_message *m = &msg[k];
        if (m->done) continue;
        int e = l->world->api->test(&m->request, &m->done);
        if (e) {
            *s = mpi_fail(l->world, e, what);
            return -1;
        }
        open += !m->done;
    }
    return open;
}

static void give_up_messages(struct link *l, link_message *msg, int n) {
    pthread_mutex_lock(&l->world->lock);
    for (int k = 0; k < n; k++) {
        if (msg[k].started && !msg[k].done) l->world->api->give_up(&msg[k].request, msg[k].receive);
    }
    pthread_mutex_unlock(&l->world->lock);
}

static sheaf_status late(const link_message *msg, int n, const link_wait *wait) {
    const link_message *missing = NULL;
    for (int k = 0; k < n; k++) {
        if (!msg[k].done && (!missing || (msg[k].receive && !missing->receive))) missing = &msg[k];
    }
    return sheaf_fail(SHEAF_E_TIMEOUT, "'%s': rank %d did not %s within %lld ms", wait->what,
                      missing ? missing->rank : -1, missing && !missing->receive ? "receive" : "come",
                      (long long)(wait->timeout_ns / 1000000));
}

/* Between two looks: spin, then yield, then sleep in steps that a token does not notice. */
static void rest(int64_t waited, int64_t spin_ns) {
    if (waited < spin_ns) {
        sheaf_relax();
    } else if (waited < spin_ns + 2000000) {
        sched_yield();
    } else {
        usleep(waited < 1000000000 ? 50 : 1000);
    }
}

static sheaf_status stopped(void) { return sheaf_fail(SHEAF_E_CANCELLED, "following rank 0: stopped by a signal"); }

static sheaf_status wait_messages(struct link *l, link_message *msg, int n, const link_wait *wait) {
    sheaf_world *w = l->world;
    sheaf_status s = SHEAF_OK;
    int64_t start = sheaf_now_ns();
    for (unsigned look = 0;; look++) {
        pthread_mutex_lock(&w->lock);
        int open = test_messages(l, msg, n, wait->what, &s);
        if (open >= 0 && look % 16 == 0) poll_notices(w); /* also when all is there: the others may have given up */
        pthread_mutex_unlock(&w->lock);
        if (open < 0) return s;
        if (wait->broken && wait->broken(wait->ctx)) return SHEAF_E_CANCELLED;
        if (atomic_load(&w->dead) && !wait->farewell) return sheaf_error_restore(&w->why);
        if (open == 0) return SHEAF_OK;
        int64_t waited = sheaf_now_ns() - start;
        if (wait->timeout_ns > 0 && waited > wait->timeout_ns) return late(msg, n, wait);
        if (wait->timeout_ns == 0 && sheaf_world_stopped(w)) return stopped();
        rest(waited, wait->spin_ns);
    }
}

sheaf_status link_exchange(struct link *l, link_message *msg, int n, int tag, const link_wait *wait) {
    sheaf_world *w = l->world;
    if (atomic_load(&w->dead) && !wait->farewell) return sheaf_error_restore(&w->why);
    for (int k = 0; k < n; k++) {
        if (msg[k].size > INT_MAX) {
            return sheaf_fail(SHEAF_E_RANGE, "'%s': a message of %zu bytes", wait->what, msg[k].size);
        }
        msg[k].started = msg[k].done = false;
    }
    pthread_mutex_lock(&w->lock);
    sheaf_status s = start_messages(l, msg, n, tag, wait->what);
    pthread_mutex_unlock(&w->lock);
    if (!s) s = wait_messages(l, msg, n, wait);
    if (s) give_up_messages(l, msg, n);
    return s;
}

/* --- links ----------------------------------------------------------------------------------------------- */

static sheaf_status make_link(sheaf_world *w, link_failed_fn failed, void *ctx, struct link **out) {
    struct link *l = sheaf_calloc(1, sizeof *l);
    if (!l) return sheaf_fail(SHEAF_E_NO_MEMORY, "a link between %d ranks", w->size);
    *l = (struct link){.world = w, .id = w->next_link++, .failed = failed, .ctx = ctx};
    pthread_mutex_lock(&w->lock);
    int e = w->api->dup(&l->comm);
    pthread_mutex_unlock(&w->lock);
    if (e) {
        sheaf_free(l);
        return mpi_fail(w, e, "connecting the ranks");
    }
    *out = l;
    return SHEAF_OK;
}

sheaf_status link_new(sheaf_world *w, link_failed_fn failed, void *ctx, struct link **out) {
    sheaf_status s = make_link(w, failed, ctx, out);
    if (s) return s;
    pthread_mutex_lock(&w->lock);
    (*out)->next = w->links;
    w->links = *out;
    pthread_mutex_unlock(&w->lock);
    return SHEAF_OK;
}

/* Waits a little for the link's notices to leave: their text lies in it. */
static void flush_notices(struct link *l) {
    bool all = false;
    for (int k = 0; !all && k < 2000; k++) {
        pthread_mutex_lock(&l->world->lock);
        all = told(l);
        pthread_mutex_unlock(&l->world->lock);
        if (!all) usleep(100);
    }
}

void link_free(struct link *l) {
    if (!l) return;
    sheaf_world *w = l->world;
    flush_notices(l);
    pthread_mutex_lock(&w->lock);
    for (struct link **p = &w->links; *p; p = &(*p)->next) {
        if (*p == l) {
            *p = l->next;
            break;
        }
    }
    for (int k = 0; k < w->size; k++) {
        if (l->out_pending[k]) w->api->give_up(&l->out_request[k], false);
    }
    if (!atomic_load(&w->dead)) w->api->drop(l->comm);
    pthread_mutex_unlock(&w->lock);
    sheaf_free(l);
}

sheaf_status link_renew(struct link *l) {
    sheaf_world *w = l->world;
    flush_notices(l);
    sheaf_status s = sheaf_world_barrier(w);
    if (s) return s;
    pthread_mutex_lock(&w->lock);
    l->epoch++;
    w->api->drop(l->comm);
    int e = w->api->dup(&l->comm);
    pthread_mutex_unlock(&w->lock);
    return e ? mpi_fail(w, e, "connecting the ranks again") : SHEAF_OK;
}

/* --- world-wide calls -------------------------------------------------------------------------------------- */

static int next_tag(sheaf_world *w) { return (int)(++w->calls & 0x3fff); }

static link_wait world_wait(const char *what, bool limited) {
    int64_t ms = sheaf_settings()->comm_timeout_ms;
    return (link_wait){.timeout_ns = limited ? ms * 1000000 : 0, .spin_ns = 20000, .what = what};
}

static sheaf_status broadcast_piece(sheaf_world *w, char *bytes, size_t n) {
    link_message msg[MAX_RANKS];
    int count = 0, tag = next_tag(w);
    link_wait wait = world_wait("broadcast to all ranks", w->rank == 0);
    if (sheaf_world_stopped(w)) return stopped();
    if (w->rank != 0) {
        msg[count++] = (link_message){.bytes = bytes, .size = n, .rank = 0, .receive = true};
    } else {
        for (int k = 1; k < w->size; k++) msg[count++] = (link_message){.bytes = bytes, .size = n, .rank = k};
    }
    return link_exchange(w->own, msg, count, tag, &wait);
}

sheaf_status sheaf_world_broadcast(sheaf_world *w, void *bytes, size_t n) {
    if (sheaf_world_size(w) == 1) return SHEAF_OK;
    for (size_t at = 0; at < n; at += PIECE) {
        sheaf_status s = broadcast_piece(w, (char *)bytes + at, n - at < PIECE ? n - at : PIECE);
        if (s) return s;
    }
    return SHEAF_OK;
}

static sheaf_status gather_all(sheaf_world *w, const void *mine, size_t n, void *all, int tag, const link_wait *wait) {
    link_message msg[2 * MAX_RANKS];
    int count = 0;
    for (int k = 0; k < w->size; k++) {
        if (k == w->rank) continue;
        msg[count++] = (link_message){.bytes = (char *)all + (size_t)k * n, .size = n, .rank = k, .receive = true};
        msg[count++] = (link_message){.bytes = (void *)mine, .size = n, .rank = k};
    }
    return link_exchange(w->own, msg, count, tag, wait);
}

sheaf_status sheaf_world_allgather(sheaf_world *w, const void *mine, size_t n, void *all) {
    if (n) memcpy((char *)all + (size_t)sheaf_world_rank(w) * n, mine, n);
    if (sheaf_world_size(w) == 1) return SHEAF_OK;
    link_wait wait = world_wait("gathering from all ranks", true);
    return gather_all(w, mine, n, all, next_tag(w), &wait);
}

sheaf_status sheaf_world_barrier(sheaf_world *w) {
    char here = 1, all[MAX_RANKS];
    return sheaf_world_allgather(w, &here, 1, all);
}

void sheaf_world_abandon(sheaf_world *w, sheaf_status why) {
    if (!w || w->size == 1 || atomic_load(&w->dead)) return;
    pthread_mutex_lock(&w->lock);
    tell(w->own, 0, why);
    pthread_mutex_unlock(&w->lock);
    flush_notices(w->own);
    sheaf_error_save(&w->why, why);
    atomic_store(&w->dead, true);
}

void sheaf_world_set_stop(sheaf_world *w, bool (*stop)(void *ctx), void *ctx) {
    if (!w) return;
    w->stop = stop;
    w->stop_ctx = ctx;
}

bool sheaf_world_stopped(const sheaf_world *w) { return w && w->rank != 0 && w->stop && w->stop(w->stop_ctx); }

int sheaf_world_rank(const sheaf_world *w) { return w ? w->rank : 0; }
int sheaf_world_size(const sheaf_world *w) { return w ? w->size : 1; }
int sheaf_world_host_rank(const sheaf_world *w) { return w ? w->host_rank : 0; }
int sheaf_world_host_size(const sheaf_world *w) { return w ? w->host_size : 1; }

/* --- opening and closing ------------------------------------------------------------------------------------- */

/* The folder that the library (or, when it is linked in, the program) lies in. */
static void own_folder(char *out, size_t n) {
    static const char marker; /* an address inside this object */
    Dl_info info;
    char program[PATH_MAX];
    out[0] = 0;
    if (!dladdr(&marker, &info) || !info.dli_fname) return;
    const char *file = info.dli_fname, *slash = strrchr(file, '/');
    if (!slash) { /* linked into a program that was found by PATH: its name is only what was typed */
        ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
        if (length <= 0) return;
        program[length] = 0;
        file = program;
        slash = strrchr(file, '/');
    }
    if (slash) snprintf(out, n, "%.*s", (int)(slash - file), file);
}

static void *load_from(const char *folder, const char *below, char *tried, size_t n) {
    char path[PATH_MAX];
    if (!folder[0]) return NULL;
    int length = snprintf(path, sizeof path, "%s%s/libsheaf-mpi.so", folder, below);
    if (length < 0 || length >= (int)sizeof path) return NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* MPI's plug-ins look up its symbols */
    if (!library && access(path, F_OK) == 0) snprintf(tried, n, "%s", dlerror());
    return library;
}

static sheaf_status load_module(sheaf_world *w) {
    static const char *const below[] = {"", "/sheaf", "/../lib", "/../lib/sheaf", "/.."};
    const char *given = sheaf_settings()->module_dir;
    char folder[PATH_MAX], tried[512] = "libsheaf-mpi.so was not found beside the library";
    own_folder(folder, sizeof folder);
    if (given[0]) {
        w->library = load_from(given, "", tried, sizeof tried);
    } else {
        for (size_t k = 0; !w->library && k < sizeof below / sizeof below[0]; k++) {
            w->library = load_from(folder, below[k], tried, sizeof tried);
        }
    }
    if (w->library) return SHEAF_OK;
    sheaf_fail(SHEAF_E_NO_DEVICE, "a launcher started several processes: %s", tried);
    return sheaf_error_hint(SHEAF_E_NO_DEVICE, "build with MPI, or name its folder in SHEAF_MODULE_DIR");
}

static sheaf_status check_module(sheaf_world *w) {
    sheaf_mpi_entry entry;
    void *symbol = dlsym(w->library, SHEAF_MPI_ENTRY);
    if (!symbol) return sheaf_fail(SHEAF_E_UNSUPPORTED, "libsheaf-mpi.so has no entry %s", SHEAF_MPI_ENTRY);
    memcpy(&entry, &symbol, sizeof entry);
    w->api = entry();
    if (w->api->abi != SHEAF_MPI_ABI || strcmp(w->api->version, SHEAF_VERSION) != 0) {
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "libsheaf-mpi.so has ABI %u, version %s; want %d, %s", w->api->abi,
                          w->api->abi == SHEAF_MPI_ABI ? w->api->version : "?", SHEAF_MPI_ABI, SHEAF_VERSION);
    }
    return SHEAF_OK;
}

static sheaf_status connect_ranks(sheaf_world *w) {
    sheaf_mpi_place at = {0};
    int e = w->api->open(&at);
    if (e) return mpi_fail(w, e, "starting MPI");
    w->rank = at.rank;
    w->size = at.size;
    w->host_rank = at.host_rank;
    w->host_size = at.host_size;
    if (w->size > MAX_RANKS) {
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "a world of %d ranks, at most %d", w->size, MAX_RANKS);
    }
    if (w->size == 1) return SHEAF_OK;
    e = w->api->dup(&w->notices);
    if (e) return mpi_fail(w, e, "connecting the ranks");
    listen_for_notice(w);
    return make_link(w, NULL, NULL, &w->own);
}

sheaf_status sheaf_world_open(sheaf_world **out) {
    *out = NULL;
    sheaf_world *w = sheaf_calloc(1, sizeof *w);
    if (!w) return sheaf_fail(SHEAF_E_NO_MEMORY, "opening the world");
    w->size = w->host_size = 1;
    pthread_mutex_init(&w->lock, NULL);
    int ranks = sheaf_settings_launcher_ranks();
    sheaf_status s = SHEAF_OK;
    if (ranks == 0 || ranks > 1) {
        s = load_module(w);
        if (!s) s = check_module(w);
        if (!s) s = connect_ranks(w);
    }
    if (s) {
        sheaf_world_close(w);
        return s;
    }
    *out = w;
    return SHEAF_OK;
}

/* After a failure the ranks that are left still part in good order: a rank that ends without MPI's leave has
 * mpirun kill the others, perhaps before they could say why they end. Whoever does not come is not waited
 * for; MPI is then left as it is, for finalising it would wait for ever. */
static bool farewell(sheaf_world *w) {
    char here = 1, all[MAX_RANKS];
    link_wait wait = {.timeout_ns = FAREWELL_MS * 1000000ll, .what = "parting", .farewell = true};
    return gather_all(w, &here, 1, all, TAG_FAREWELL, &wait) == SHEAF_OK;
}

static bool part(sheaf_world *w) {
    if (atomic_load(&w->dead)) return farewell(w);
    if (!sheaf_world_barrier(w)) return true;
    sheaf_log(SHEAF_LOG_WARN, "ending without the other ranks: %s", sheaf_error());
    return atomic_exchange(&w->dead, true) && farewell(w); /* told of a failure while waiting, or left alone */
}

/* True when MPI may still write into this world's memory. */
static bool disconnect(sheaf_world *w) {
    bool parted = part(w);
    if (parted && w->listening) w->api->give_up(&w->in_request, true);
    link_free(w->own);
    if (parted) {
        w->api->drop(w->notices);
        w->api->close();
    }
    return !parted;
}

/* The module stays loaded: MPI libraries leave threads and exit handlers behind. */
void sheaf_world_close(sheaf_world *w) {
    if (!w) return;
    bool kept = false;
    if (w->own) {
        kept = disconnect(w);
    } else if (w->api && w->size == 1) {
        w->api->close();
    }
    pthread_mutex_destroy(&w->lock);
    if (!kept) sheaf_free(w); /* else MPI may still write into its notice buffer */
}
