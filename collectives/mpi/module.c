/* libsheaf-mpi.so: MPI behind the words of module.h. Keeps whether this module initialised MPI, and
 * nothing else. Does not decide when to wait, whom to blame, or what is sent: world.c does.
 *
 * All messages are non-blocking. Open MPI's collectives would be fewer lines, but a rank that waits in
 * one cannot be told to stop, and a wait that nobody can end is how jobs hang. */
#include "collectives/mpi/module.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(MPI_Comm) <= sizeof(uint64_t) && sizeof(MPI_Request) <= sizeof(uint64_t),
               "MPI's handles fit in a word");

static bool ours; /* we initialised MPI */

static uint64_t comm_word(MPI_Comm c) {
    uint64_t w = 0;
    memcpy(&w, &c, sizeof c);
    return w;
}

static MPI_Comm comm_of(uint64_t w) {
    MPI_Comm c;
    memcpy(&c, &w, sizeof c);
    return c;
}

static void request_store(uint64_t *w, MPI_Request r) {
    *w = 0;
    memcpy(w, &r, sizeof r);
}

static MPI_Request request_of(const uint64_t *w) {
    MPI_Request r;
    memcpy(&r, w, sizeof r);
    return r;
}

static int host_place(sheaf_mpi_place *out) {
    MPI_Comm host;
    int e = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    if (e) return e;
    MPI_Comm_rank(host, &out->host_rank);
    MPI_Comm_size(host, &out->host_size);
    return MPI_Comm_free(&host);
}

static int open_mpi(sheaf_mpi_place *out) {
    int up = 0, level = MPI_THREAD_SINGLE;
    int e = MPI_Initialized(&up);
    if (!e) e = up ? MPI_Query_thread(&level) : MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (e) return e;
    ours = !up;
    if (level < MPI_THREAD_SERIALIZED) return MPI_ERR_UNSUPPORTED_OPERATION;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &out->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &out->size);
    return host_place(out);
}

static int close_mpi(void) { return ours ? MPI_Finalize() : MPI_SUCCESS; }

static int dup_world(uint64_t *out) {
    MPI_Comm c;
    int e = MPI_Comm_dup(MPI_COMM_WORLD, &c);
    if (e) return e;
    MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN);
    *out = comm_word(c);
    return MPI_SUCCESS;
}

static int drop_comm(uint64_t w) {
    MPI_Comm c = comm_of(w);
    return MPI_Comm_free(&c);
}

static int send_bytes(uint64_t w, const void *p, size_t n, int to, int tag, uint64_t *request) {
    MPI_Request r;
    if (n > INT_MAX) return MPI_ERR_COUNT;
    int e = MPI_Isend(p, (int)n, MPI_BYTE, to, tag, comm_of(w), &r);
    if (!e) request_store(request, r);
    return e;
}

static int receive_bytes(uint64_t w, void *p, size_t n, int from, int tag, uint64_t *request) {
    MPI_Request r;
    if (n > INT_MAX) return MPI_ERR_COUNT;
    int e = MPI_Irecv(p, (int)n, MPI_BYTE, from == SHEAF_MPI_ANY ? MPI_ANY_SOURCE : from, tag, comm_of(w), &r);
    if (!e) request_store(request, r);
    return e;
}

static int test_request(uint64_t *request, bool *done) {
    MPI_Request r = request_of(request);
    int flag = 0;
    int e = MPI_Test(&r, &flag, MPI_STATUS_IGNORE);
    request_store(request, r);
    *done = flag != 0;
    return e;
}

static void give_up(uint64_t *request, bool receive) {
    MPI_Request r = request_of(request);
    if (r == MPI_REQUEST_NULL) return;
    if (receive) MPI_Cancel(&r);
    MPI_Request_free(&r);
    request_store(request, r);
}

static void error_text(int code, char *text, size_t n) {
    char whole[MPI_MAX_ERROR_STRING + 1];
    int length = 0;
    if (MPI_Error_string(code, whole, &length)) length = 0;
    whole[length] = 0;
    snprintf(text, n, "%s", whole[0] ? whole : "unknown MPI error");
}

const sheaf_mpi_api *sheaf_mpi_module(void);

__attribute__((visibility("default"))) const sheaf_mpi_api *sheaf_mpi_module(void) {
    static const sheaf_mpi_api api = {
        .abi = SHEAF_MPI_ABI,
        .version = SHEAF_VERSION,
#ifdef OMPI_MAJOR_VERSION
        .library = "Open MPI",
#else
        .library = "MPI",
#endif
        .open = open_mpi,
        .close = close_mpi,
        .dup = dup_world,
        .drop = drop_comm,
        .send = send_bytes,
        .receive = receive_bytes,
        .test = test_request,
        .give_up = give_up,
        .error_text = error_text,
    };
    return &api;
}
