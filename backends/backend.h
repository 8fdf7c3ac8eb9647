/* Backends: what computes, and what memory it computes on.
 *
 * Nouns: a *device* answers static questions and owns nothing that runs; a *backend* is a device
 * opened for work; a *queue* is where a device's work waits in order; a *buffer type* is a kind of
 * memory, a *buffer* an allocation of it; an *event* marks a point in one queue that another may wait
 * for. A *prepared* graph is what a backend compiled: it holds slots, never addresses.
 *
 *     sheaf_registry *reg;  sheaf_device *devs[8];  int n;
 *     sheaf_registry_new(&reg);
 *     sheaf_devices_open(reg, "cpu/2", &opts, devs, 8, &n);       // two devices, own cores and threads
 *     sheaf_backend_new(devs[0], &be);
 *     sheaf_buffer_alloc(devs[0]->buffer_type, bytes, SHEAF_USAGE_COMPUTE, &buf);
 *     sheaf_backend_prepare(be, graph, &prep);
 *     sheaf_backend_run(be, prep, addr, scratch, queue);  sheaf_queue_synchronize(queue);
 *
 * Every object is a struct whose first members are the ones here; a backend room extends them. The
 * wrappers below check arguments and call the interface. Errors are statuses; work that fails on a
 * queue keeps its first failure there, later work is skipped, and synchronize hands it over.
 * Threads: devices and buffer types may be used by any thread; a backend and its queues by one at a time
 * (posting), while the queue's own workers run behind it.
 */
#ifndef SHEAF_BACKENDS_BACKEND_H
#define SHEAF_BACKENDS_BACKEND_H

#include "tensor/galloc.h"
#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf_registry sheaf_registry;
typedef struct sheaf_device sheaf_device;
typedef struct sheaf_buffer_type sheaf_buffer_type;
typedef struct sheaf_backend sheaf_backend;
typedef struct sheaf_queue sheaf_queue;
typedef struct sheaf_event sheaf_event;
typedef struct sheaf_prepared sheaf_prepared;

/* --- devices ----------------------------------------------------------------------------------- */

typedef enum sheaf_device_kind { SHEAF_DEVICE_CPU, SHEAF_DEVICE_GPU, SHEAF_DEVICE_META } sheaf_device_kind;

typedef struct sheaf_caps {
    bool async; /* run returns before the work is done */
    bool events;
    bool host_ptr;    /* buffer_from_host_ptr works (mapped weights without copy) */
    bool host_memory; /* its buffers are host memory: a host address may be read directly */
} sheaf_caps;

/* Row kernels on host memory whose bits are those of the device's own ops, for work that others do on its
 * queue (the epilogue of a sum). Rows of n contiguous f32; weight may be NULL. */
typedef struct sheaf_row_kernels {
    void (*rms_norm)(float *out, const float *x, const float *weight, int64_t n, float eps);
    /* out = (float)(x + y), then + residual unless that is NULL; out may be residual. */
    void (*sum_f64)(float *out, const double *x, const double *y, const float *residual, int64_t n);
} sheaf_row_kernels;

typedef struct sheaf_device_iface {
    void (*free)(sheaf_device *d);
    /* Total and free bytes usable for buffers. */
    sheaf_status (*memory)(sheaf_device *d, size_t *total, size_t *free_bytes);
    bool (*supports_op)(sheaf_device *d, const sheaf_tensor *node);
    bool (*supports_buffer_type)(sheaf_device *d, const sheaf_buffer_type *t); /* can compute on it in place */
    bool (*wants_offload)(sheaf_device *d, const sheaf_tensor *node);          /* NULL: never */
    sheaf_status (*backend_new)(sheaf_device *d, sheaf_backend **out);
    sheaf_status (*buffer_from_host_ptr)(sheaf_device *d, void *p, size_t size,
                                         sheaf_buffer **out); /* NULL: not supported */
    const sheaf_row_kernels *(*row_kernels)(sheaf_device *d); /* NULL: the device's memory is not the host's */
} sheaf_device_iface;

struct sheaf_device {
    const sheaf_device_iface *iface;
    char name[32];        /* "cpu/2.0": unique in a run; printed */
    char description[96]; /* processor or card, level of kernels, cores */
    sheaf_device_kind kind;
    sheaf_caps caps;
    sheaf_buffer_type *buffer_type;        /* its own memory */
    sheaf_buffer_type *mapped_buffer_type; /* for mapped weights, or NULL */
    int32_t n_threads;                     /* CPU devices: threads of the team */
    int32_t numa;                          /* NUMA node, -1 unknown */
};

/* --- buffer types and buffers ------------------------------------------------------------------ */

typedef enum sheaf_usage { SHEAF_USAGE_ANY, SHEAF_USAGE_WEIGHTS, SHEAF_USAGE_STATE, SHEAF_USAGE_COMPUTE } sheaf_usage;

typedef struct sheaf_buffer_type_iface {
    sheaf_status (*alloc)(sheaf_buffer_type *t, size_t size, sheaf_buffer **out);
    size_t (*alloc_size)(sheaf_buffer_type *t, const sheaf_tensor *x); /* NULL: sheaf_nbytes */
} sheaf_buffer_type_iface;

struct sheaf_buffer_type {
    const sheaf_buffer_type_iface *iface;
    char name[32];
    sheaf_device *device; /* whose memory it is; NULL: the plain host's */
    size_t alignment;
    size_t max_size; /* 0: no limit */
    int32_t
        pack_rows; /* packing granularity of weights in rows (dimension 1); 1: GGUF order. Layout units include it. */
    bool is_host;  /* data is a host address with GGUF bytes that the host may read and write */
};

typedef struct sheaf_buffer_iface {
    void (*free)(sheaf_buffer *b);
    /* Called for each tensor placed in the buffer (shards get their headers here). NULL: nothing to do. */
    sheaf_status (*init_tensor)(sheaf_buffer *b, sheaf_tensor *t);
    /* GGUF bytes of a contiguous tensor, [offset, offset+size) of its own bytes; synchronous. */
    sheaf_status (*set)(sheaf_buffer *b, sheaf_tensor *t, const void *src, size_t offset, size_t size);
    sheaf_status (*get)(sheaf_buffer *b, const sheaf_tensor *t, void *dst, size_t offset, size_t size);
    /* `rows` pieces of `row_bytes`, src_stride apart on the host and dst_stride apart in the tensor. NULL: looped over
     * set/get. */
    sheaf_status (*set_2d)(sheaf_buffer *b, sheaf_tensor *t, const void *src, size_t src_stride, size_t offset,
                           size_t stride, size_t row_bytes, size_t rows);
    sheaf_status (*get_2d)(sheaf_buffer *b, const sheaf_tensor *t, void *dst, size_t dst_stride, size_t offset,
                           size_t stride, size_t row_bytes, size_t rows);
    sheaf_status (*clear)(sheaf_buffer *b, uint8_t value);
} sheaf_buffer_iface;

struct sheaf_buffer {
    const sheaf_buffer_iface *iface;
    sheaf_buffer_type *type;
    void *base; /* NULL only if size is 0: "nothing to allocate" is not "failed" (case A15) */
    size_t size;
    sheaf_usage usage;
};

SHEAF_API sheaf_status sheaf_buffer_alloc(sheaf_buffer_type *t, size_t size, sheaf_usage usage,
                                          sheaf_buffer **out); /* size 0 is fine */
SHEAF_API void sheaf_buffer_free(sheaf_buffer *b);
SHEAF_API sheaf_status sheaf_buffer_clear(sheaf_buffer *b, uint8_t value);
/* Places `t` (no data yet, not a view) at `addr` inside `b` and calls init_tensor. */
SHEAF_API sheaf_status sheaf_tensor_place(sheaf_buffer *b, sheaf_tensor *t, void *addr);
/* Gives a view its root's buffer and address (+ view_offs). */
SHEAF_API sheaf_status sheaf_view_place(sheaf_tensor *view);
SHEAF_API size_t sheaf_alloc_size(sheaf_buffer_type *t, const sheaf_tensor *x);
/* One buffer for all tensors of an arena that have no data yet (T5); *out NULL when there are none. */
SHEAF_API sheaf_status sheaf_arena_place_all(sheaf_arena *a, sheaf_buffer_type *t, sheaf_usage usage,
                                             sheaf_buffer **out);

/* Bytes of a tensor, any buffer, synchronous. Range checked. Views go through their root's buffer. */
SHEAF_API sheaf_status sheaf_tensor_set(sheaf_tensor *t, const void *src, size_t offset, size_t size);
SHEAF_API sheaf_status sheaf_tensor_get(const sheaf_tensor *t, void *dst, size_t offset, size_t size);
SHEAF_API sheaf_status sheaf_tensor_set_2d(sheaf_tensor *t, const void *src, size_t src_stride, size_t offset,
                                           size_t stride, size_t row_bytes, size_t rows);
SHEAF_API sheaf_status sheaf_tensor_get_2d(const sheaf_tensor *t, void *dst, size_t dst_stride, size_t offset,
                                           size_t stride, size_t row_bytes, size_t rows);
/* Copies a whole tensor between any two buffers (same shape and type), through the host if need be; synchronous. */
SHEAF_API sheaf_status sheaf_tensor_copy(const sheaf_tensor *from, sheaf_tensor *to);
/* The one announced direct host write: returns the host address of t's bytes for writing, NULL if its buffer is not
 * host memory. */
SHEAF_API void *sheaf_host_write(sheaf_tensor *t, size_t offset, size_t size);

SHEAF_API sheaf_buffer_type *sheaf_host_buffer_type(void); /* plain host memory: malloc'd, aligned 64 */

/* --- queues and events ------------------------------------------------------------------------- */

/* A function run in queue order. On a CPU queue every thread of the team calls it (i of n; the threads
 * may meet at sheaf_queue_barrier, and none starts before all have ended what was queued before); on
 * other queues a helper thread calls it with i = 0, n = 1. */
typedef sheaf_status (*sheaf_queue_fn)(void *ctx, int i, int n, sheaf_queue *q);

typedef struct sheaf_queue_iface {
    void (*free)(sheaf_queue *q);
    sheaf_status (*call)(sheaf_queue *q, sheaf_queue_fn fn, void *ctx); /* ctx outlives its run */
    sheaf_status (*record)(sheaf_queue *q, sheaf_event *e);
    sheaf_status (*wait)(sheaf_queue *q, sheaf_event *e); /* later work waits for e's last record */
    sheaf_status (*synchronize)(sheaf_queue *q);          /* first failure, with text; then the queue is clean again */
    void (*barrier)(sheaf_queue *q, int i);               /* inside a sheaf_queue_fn: all team threads meet */
} sheaf_queue_iface;

struct sheaf_queue {
    const sheaf_queue_iface *iface;
    sheaf_device *device;
    /* Called by the queue's worker once, when it keeps its first failure and before anything later is
     * skipped, with the failure's text as that thread's error text: whoever waits for this queue's part of a
     * collective learns at once that it will not come. NULL: nobody asked. Set while the queue is idle. */
    void (*on_failure)(void *ctx, sheaf_status s);
    void *on_failure_ctx;
};

struct sheaf_event {
    const struct sheaf_event_iface *iface;
    sheaf_device *device;
};
typedef struct sheaf_event_iface {
    void (*free)(sheaf_event *e);
    sheaf_status (*synchronize)(sheaf_event *e);
} sheaf_event_iface;

SHEAF_API sheaf_status sheaf_queue_call(sheaf_queue *q, sheaf_queue_fn fn, void *ctx);
SHEAF_API sheaf_status sheaf_queue_record(sheaf_queue *q, sheaf_event *e);
SHEAF_API sheaf_status sheaf_queue_wait(sheaf_queue *q, sheaf_event *e);
SHEAF_API sheaf_status sheaf_queue_synchronize(sheaf_queue *q);
SHEAF_API void sheaf_queue_barrier(sheaf_queue *q, int i);

/* --- backends: prepare once, run often ----------------------------------------------------------- */

/* What prepare found out. `keep` lies in the prepared object. */
typedef struct sheaf_prepare_info {
    const sheaf_lifetime *keep;
    int n_keep;
    size_t scratch_bytes; /* run wants this much memory of the device's buffer type (aligned as the type) */
    int32_t n_kernels;    /* launches, or fused steps, per run */
} sheaf_prepare_info;

typedef struct sheaf_backend_iface {
    void (*free)(sheaf_backend *b);
    /* Compiles `g` (sealed; it must stay as it is while the prepared lives). No address is read. */
    sheaf_status (*prepare)(sheaf_backend *b, const sheaf_graph *g, sheaf_prepared **out);
    void (*prepared_free)(sheaf_backend *b, sheaf_prepared *p);
    sheaf_prepare_info (*prepared_info)(sheaf_backend *b, const sheaf_prepared *p);
    /* After places are known: a backend that keeps more than addresses (a meta device: where each member's
     * bytes lie; ext of imports and exports) fixes it here. NULL: nothing to do. */
    sheaf_status (*bind)(sheaf_backend *b, sheaf_prepared *p, sheaf_graph *g);
    /* Queues one run. addr[slot] for every slot of the graph ([leafs, nodes]); both arrays must live until done.
     * q NULL: the backend's own compute queue. */
    sheaf_status (*run)(sheaf_backend *b, sheaf_prepared *p, void *const *addr, void *scratch, sheaf_queue *q);
    sheaf_status (*queue_new)(sheaf_backend *b, sheaf_queue **out);
    sheaf_status (*event_new)(sheaf_backend *b, sheaf_event **out); /* NULL: no events */
    /* Asynchronous set/get/copy in queue order; NULL: the caller synchronizes and uses the buffer's own. */
    sheaf_status (*set_async)(sheaf_backend *b, sheaf_tensor *t, const void *src, size_t offset, size_t size,
                              sheaf_queue *q);
    sheaf_status (*get_async)(sheaf_backend *b, const sheaf_tensor *t, void *dst, size_t offset, size_t size,
                              sheaf_queue *q);
    sheaf_status (*copy_async)(sheaf_backend *from, sheaf_backend *to, const sheaf_tensor *src, sheaf_tensor *dst,
                               sheaf_queue *q);
    sheaf_status (*synchronize)(sheaf_backend *b);
} sheaf_backend_iface;

struct sheaf_backend {
    const sheaf_backend_iface *iface;
    sheaf_device *device;
    sheaf_queue *queue; /* the compute queue it was opened with */
};

SHEAF_API sheaf_status sheaf_backend_new(sheaf_device *d, sheaf_backend **out);
SHEAF_API void sheaf_backend_free(sheaf_backend *b);
SHEAF_API sheaf_status sheaf_backend_prepare(sheaf_backend *b, const sheaf_graph *g, sheaf_prepared **out);
SHEAF_API void sheaf_prepared_free(sheaf_backend *b, sheaf_prepared *p);
SHEAF_API sheaf_prepare_info sheaf_prepared_info(sheaf_backend *b, const sheaf_prepared *p);
SHEAF_API sheaf_status sheaf_backend_bind(sheaf_backend *b, sheaf_prepared *p, sheaf_graph *g);
SHEAF_API sheaf_status sheaf_backend_run(sheaf_backend *b, sheaf_prepared *p, void *const *addr, void *scratch,
                                         sheaf_queue *q);
SHEAF_API sheaf_status sheaf_backend_synchronize(sheaf_backend *b);
SHEAF_API bool sheaf_device_supports_op(sheaf_device *d, const sheaf_tensor *node);
SHEAF_API bool sheaf_device_supports_buffer_type(sheaf_device *d, const sheaf_buffer_type *t);

/* Convenience for tests and small programs: prepare, run, synchronize on data pointers as they are. */
SHEAF_API sheaf_status sheaf_backend_compute(sheaf_backend *b, const sheaf_graph *g);

/* --- registry: the only global-like state, owned by the caller ------------------------------------ */

typedef struct sheaf_open_options {
    int32_t n_threads;     /* over all CPU devices of this process; 0: physical cores that mask and quota allow */
    const char *cpu_level; /* NULL or "": best the machine has; one that it lacks is SHEAF_E_ARGUMENT */
    int32_t part, n_parts; /* this process's share of the host's cores under mpirun (0 of 1 alone) */
    bool idle;             /* they are looked at, not computed with: no word about crowded cores */
} sheaf_open_options;

SHEAF_API sheaf_status sheaf_registry_new(sheaf_registry **out);
SHEAF_API void sheaf_registry_free(sheaf_registry *r); /* closes its devices */
/* Opens a device list as CLI.md spells it. Grammar errors, unknown kinds, zero parts: SHEAF_E_ARGUMENT;
 * a known kind that is not there: SHEAF_E_NO_DEVICE. The devices belong to the registry. */
SHEAF_API sheaf_status sheaf_devices_open(sheaf_registry *r, const char *list, const sheaf_open_options *opts,
                                          sheaf_device **out, int max, int *n);
/* The synchronous host CPU backend that ends every scheduler array: borrows the parked threads of `members` (may be
 * none). */
SHEAF_API sheaf_status sheaf_host_device_open(sheaf_registry *r, sheaf_device *const *members, int n,
                                              sheaf_device **out);

/* What the machine has, for `sheaf devices` (nothing is opened). */
typedef struct sheaf_found_device {
    char name[32], kind[16], description[96];
    int32_t cores, numa;
    size_t memory_total, memory_free;
    char notes[4][128];
    int n_notes;
} sheaf_found_device;
SHEAF_API sheaf_status sheaf_devices_find(sheaf_registry *r, sheaf_found_device *out, int max, int *n);
/* Threads by default for this process: physical cores allowed by affinity, cpuset and quota (case E01), at least 1. */
SHEAF_API int sheaf_default_threads(void);

#ifdef __cplusplus
}
#endif
#endif
