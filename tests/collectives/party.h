/* N pretend devices that meet: test support for collectives.
 *
 * A *pretend* is a device with one queue and a team of plain threads that walk its calls in order, as a
 * CPU device's do: failures are kept, what follows is skipped, on_failure is told. A *party* is N of them
 * with a communicator. A test makes a device late, stuck or dead by posting late_call and its like in
 * front of a collective. */
#ifndef SHEAF_TESTS_COLLECTIVES_PARTY_H
#define SHEAF_TESTS_COLLECTIVES_PARTY_H

#include "collectives/comm_internal.h"

#include <pthread.h>

enum { PARTY_MAX = 9, PRETEND_RING = 256 };

typedef struct pretend pretend;

typedef struct party {
    int n;
    sheaf_world *world;
    sheaf_comm *comm;
    pretend *member[PARTY_MAX];
    sheaf_device *device[PARTY_MAX];
    sheaf_queue *queue[PARTY_MAX];
} party;

/* False (with the text printed) when something failed. `pin`: the engine of sums, "" for the default. */
bool party_open(party *p, int n, int threads, const char *pin);
void party_close(party *p);
/* Posts op on all members, in an order that changes with `turn`. */
sheaf_status party_post(party *p, sheaf_comm_op *op, const sheaf_comm_args *args, int turn);
/* Synchronizes all; the first failure, and what each said (text[k] may be NULL). */
sheaf_status party_wait(party *p, sheaf_status *each, char (*text)[256]);

/* Queue calls. */
sheaf_status late_call(void *microseconds, int i, int n, sheaf_queue *q); /* const int * */
sheaf_status failing_call(void *ctx, int i, int n, sheaf_queue *q);       /* "kernel 7: pretended" */
typedef struct gate {
    atomic_int open;
} gate;
sheaf_status gate_call(void *gate, int i, int n, sheaf_queue *q); /* waits until it is open */

/* A small generator, the same everywhere. */
static inline uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline double next_unit(uint64_t *state) { return (double)(next_random(state) >> 11) * 0x1p-52 - 1.0; }

/* --- the reference --- */

/* Element `e` of the sum over n addends, by the definition of the canonical order, one element at a time. */
double reference_sum_f64(int n, uint64_t empty, const double *const *in, int64_t e);
float reference_sum_f32(int n, uint64_t empty, const float *const *in, int64_t e);
/* out = sum + residual, norm_out = rms_norm(out) * weight; any of the last three may be NULL. */
void reference_epilogue(float *out, const float *residual, const float *weight, float *norm_out, int64_t row,
                        int64_t rows, float eps);
bool same_f32(float a, float b); /* the same bits, or both NaN */

#endif
