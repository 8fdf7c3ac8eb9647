/* What a graph is fed with: token ids, positions, cells, the mask, the wanted rows. The leafs are made
 * with the graph; their contents are written before every compute, in place. */
#include "models/model_internal.h"

static sheaf_tensor *input(sheaf_tensor *t, const char *name) {
    return sheaf_set_flag(layer_named(t, name, -1), SHEAF_FLAG_INPUT);
}

void graph_inputs_make(graph_build *b) {
    const graph_key *k = &b->key;
    sheaf_arena *a = b->arena;
    b->in.tokens = input(sheaf_new_1d(a, SHEAF_I32, k->n_tokens), "inp_tokens");
    b->in.positions = input(sheaf_new_1d(a, SHEAF_I32, k->n_tokens), "inp_pos");
    b->in.cells = input(sheaf_new_1d(a, SHEAF_I64, k->n_tokens), "inp_cells");
    if (b->model->n_windowed < b->hp->n_layer)
        b->in.mask = input(sheaf_new_2d(a, SHEAF_F16, k->n_kv, k->n_tokens), "inp_mask");
    if (b->model->n_windowed > 0) b->in.window = input(sheaf_new_2d(a, SHEAF_F16, k->n_kv, k->n_tokens), "inp_window");
    b->in.outputs = k->n_out < k->n_tokens ? input(sheaf_new_1d(a, SHEAF_I32, k->n_out), "inp_out_ids") : NULL;
}

/* The announced host address of a whole input. */
static void *whole(sheaf_tensor *t) { return sheaf_host_write(t, 0, sheaf_nbytes(t)); }

/* Rows of the wanted tokens; where none is wanted, the graph still computes one, and nobody reads it. */
static void fill_outputs(const sheaf_context *c, int32_t first, int32_t n, int32_t *rows) {
    int32_t at = 0;
    for (int32_t i = 0; i < n; i++)
        if (c->batch.want[first + i]) rows[at++] = i;
    if (at == 0) rows[0] = 0;
}

sheaf_status graph_inputs_fill(sheaf_context *c, int32_t first, int32_t n) {
    const graph_inputs *in = &c->in;
    const full_batch *b = &c->batch;
    int32_t *tokens = whole(in->tokens), *positions = whole(in->positions);
    int64_t *cells = whole(in->cells);
    uint16_t *mask = in->mask ? whole(in->mask) : NULL, *window = in->window ? whole(in->window) : NULL;
    int32_t *outputs = in->outputs ? whole(in->outputs) : NULL;
    if (!tokens || !positions || !cells || (in->mask && !mask) || (in->window && !window) || (in->outputs && !outputs))
        return sheaf_fail(SHEAF_E_INTERNAL, "an input of the graph does not lie in host memory");
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = b->token[first + i];
        positions[i] = b->pos[first + i];
        cells[i] = c->claimed[first + i];
        int32_t seq = b->seq[first + i], pos = b->pos[first + i], n_kv = c->key.n_kv;
        size_t row = (size_t)i * (size_t)n_kv;
        if (mask) kv_cells_mask(&c->cells, seq, pos, 0, n_kv, mask + row);
        if (window) kv_cells_mask(&c->cells, seq, pos, c->model->hp.window, n_kv, window + row);
    }
    if (outputs) fill_outputs(c, first, n, outputs);
    return SHEAF_OK;
}
