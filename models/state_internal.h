/* A context's state as bytes, between state.c and state_file.c.
 *
 *     header | cells of every token | cells of windowed layers | lost | note | rows | checksum
 *
 *     cells   (sequence, position) of cell 0 up to the highest in use; sequence -1: free
 *     lost    what each sequence's windowed layers have given up; only of models with a window
 *     rows    for each layer the keys, then the values, of its cells in use, as they lie in a cache on one device
 *
 * Little-endian, no padding. The checksum is of all before it, in blocks of STATE_BLOCK. */
#ifndef SHEAF_MODELS_STATE_INTERNAL_H
#define SHEAF_MODELS_STATE_INTERNAL_H

#include "models/model_internal.h"
#include "tensor/gguf_output.h"

enum { STATE_VERSION = 1, STATE_BLOCK = 64 << 10, STATE_BYTE_ORDER = 0x01020304 };

typedef struct state_header {
    char magic[8];
    uint32_t version, byte_order;
    uint64_t total_bytes; /* checksum included */
    uint64_t fingerprint; /* of the model */
    int32_t type_k, type_v;
    int32_t n_layer, window; /* window 0: no layer has one */
    int32_t long_positions;  /* rotated for a long context, in families that rotate otherwise then */
    int32_t n_seq;
    int32_t cells, window_cells; /* up to the highest in use */
    int32_t window_hand, zero;
    uint64_t note_bytes, rows_bytes;
    uint64_t checksum; /* of the header above */
} state_header;
_Static_assert(sizeof(state_header) == 96 && sizeof(state_header) % 8 == 0, "no padding");

/* A header and the numbers behind it. */
typedef struct state_tables {
    state_header h;
    int32_t *words; /* pairs of cells, pairs of window_cells, lost of n_seq */
    size_t n_words;
} state_tables;

/* Where bytes go to: a file, memory, or (with neither) nowhere. The first failure is kept, what follows is dropped. */
typedef struct state_sink {
    gguf_output *file;
    uint8_t *memory;
    uint64_t at, checksum;
    uint8_t *block;
    size_t fill;
    sheaf_status status;
    sheaf_error_box error;
} state_sink;

void state_put(state_sink *k, const void *bytes, size_t n);
/* What is left of the last block, then the checksum. */
sheaf_status state_put_end(state_sink *k);

/* Where bytes come from; every read is inside, or an error that says where the bytes end. */
typedef struct state_source {
    const char *name; /* for errors */
    int fd;           /* -1: memory */
    const uint8_t *memory;
    uint64_t size;
} state_source;

sheaf_status state_source_open(state_source *k, const char *path);
void state_source_close(state_source *k);
sheaf_status state_read(const state_source *k, uint64_t at, void *dst, size_t n);
/* Reads the header and what is behind it up to the note, and checks all of it, the checksum over the whole included. */
sheaf_status state_read_tables(const sheaf_context *c, const state_source *k, state_tables *out);
void state_tables_free(state_tables *t);

/* --- of a context (state.c) --- */

sheaf_status state_fingerprint(const sheaf_model *m, uint64_t *out);
/* Does what a file (or another rank) says fit this context? */
sheaf_status state_check_header(const sheaf_context *c, const state_header *h);
sheaf_status state_check_cells(const sheaf_context *c, const state_tables *t);
uint64_t state_rows_bytes(const sheaf_context *c, const state_tables *t);
size_t state_words(const state_header *h);

#endif
