/* What butterfly and ring share: each member's accumulators, which peers copy from. */
#ifndef SHEAF_COLLECTIVES_PEER_H
#define SHEAF_COLLECTIVES_PEER_H

#include "collectives/comm_internal.h"

/* Of each local member: two accumulators of a whole message, and a landing place for a peer's copy. */
typedef struct peer_work {
    size_t bytes; /* of one accumulator */
    char *base;
} peer_work;

sheaf_status peer_compile(sheaf_comm_op *op);
void peer_op_free(sheaf_comm_op *op);
const char *peer_refuses(const sheaf_comm *c, const sheaf_comm_desc *d);
/* Accumulator `which` (0, 1; 2: the landing place) of a local member, at element e. */
char *peer_acc(const run *r, int who, int which, int64_t e);
/* Elements [from, to) of this member's addend into its accumulator 0; true zeros if it has none. */
void peer_load(run *r, int64_t from, int64_t to);
/* acc[which] becomes rows of out, with the epilogue. Ends with the last use of anybody's accumulators. */
void peer_finish(run *r, int who, int which);

#endif
