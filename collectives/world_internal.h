/* Ranks as the communicator sees them: links, messages that can time out, and notices of failure.
 *
 * A *link* is one MPI communicator of its own (made by all ranks together); a message is one point-to-point
 * send or receive on it, finished by polling, so that a wait ends on time, on a notice, or when the local
 * members fail. MPI is entered by one thread at a time, under the world's lock, and never blocks there.
 * A *notice* tells all ranks that a link failed here and why. */
#ifndef SHEAF_COLLECTIVES_WORLD_INTERNAL_H
#define SHEAF_COLLECTIVES_WORLD_INTERNAL_H

#include "collectives/comm.h"

struct link;

/* Called under the world's lock when another rank says that it failed; text is this thread's error. */
typedef void (*link_failed_fn)(void *ctx, sheaf_status s);

/* Collective over ranks. `failed` may come from any thread that waits for messages. */
sheaf_status link_new(sheaf_world *w, link_failed_fn failed, void *ctx, struct link **out);
void link_free(struct link *l);
/* Fresh messages after a failure; collective. */
sheaf_status link_renew(struct link *l);
/* Tells the other ranks of a failure (text: this thread's). Does not wait. */
void link_notify(struct link *l, sheaf_status s);

typedef struct link_message {
    void *bytes;
    size_t size;
    int rank;
    bool receive;
    /* private */
    uint64_t request;
    bool started, done;
} link_message;

/* When a wait for messages ends early. */
typedef struct link_wait {
    int64_t timeout_ns, spin_ns;
    bool (*broken)(void *ctx); /* local members failed; NULL: never */
    void *ctx;
    const char *what; /* names the operation in errors */
    bool farewell;    /* even though the world was abandoned */
} link_wait;

/* Moves all messages, in any order. SHEAF_E_TIMEOUT or _E_PEER name the first rank that is missing; SHEAF_E_CANCELLED
 * (no text) when `broken` said so. Messages not finished are then given up. Any thread. */
sheaf_status link_exchange(struct link *l, link_message *msg, int n, int tag, const link_wait *wait);

#endif
