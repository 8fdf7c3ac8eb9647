/* What libsheaf loads from libsheaf-mpi.so: the few calls it needs of MPI, without MPI's types.
 *
 * The module is found beside the library and checked: `abi` must be SHEAF_MPI_ABI and `version` the
 * library's own, else it is refused, so that an old module never runs. A communicator and a request are words here
 * (they are pointers in one MPI, integers in another). Every call that can fail returns 0 or MPI's error
 * code; error_text explains it. Calls are made by one thread at a time. */
#ifndef SHEAF_COLLECTIVES_MPI_MODULE_H
#define SHEAF_COLLECTIVES_MPI_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHEAF_MPI_ABI = 1, SHEAF_MPI_ANY = -1 };
#define SHEAF_MPI_ENTRY "sheaf_mpi_module"

typedef struct sheaf_mpi_place {
    int rank, size, host_rank, host_size;
} sheaf_mpi_place;

typedef struct sheaf_mpi_api {
    uint32_t abi;
    const char *version;
    const char *library;               /* "Open MPI v4.1.4, ..." */
    int (*open)(sheaf_mpi_place *out); /* initialises MPI unless the program has; SERIALIZED at least */
    int (*close)(void);                /* finalises it, if open initialised it */
    int (*dup)(uint64_t *comm);        /* of the world; collective */
    int (*drop)(uint64_t comm);
    int (*send)(uint64_t comm, const void *p, size_t n, int to, int tag, uint64_t *request); /* n <= INT_MAX */
    int (*receive)(uint64_t comm, void *p, size_t n, int from, int tag, uint64_t *request);
    int (*test)(uint64_t *request, bool *done);
    void (*give_up)(uint64_t *request, bool receive); /* the bytes must stay for as long as the process runs */
    void (*error_text)(int code, char *text, size_t n);
} sheaf_mpi_api;

typedef const sheaf_mpi_api *(*sheaf_mpi_entry)(void);

#endif
