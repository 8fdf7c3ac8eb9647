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
    if (b->model->n_windowed < b->hp->n_layer) {
        b->in.cells = input(sheaf_new_1d(a, SHEAF_I64, k->n_tokens), "inp_cells");
        b->in.mask = input(sheaf_new_2d(a, SHEAF_F16, k->n_kv, k->n_tokens), "inp_mask");
    }
    if (b->model->n_windowed > 0) {
        b->in.window_cells = input(sheaf_new_1d(a, SHEAF_I64, k->n_tokens), "inp_window_cells");
        b->in.window = input(sheaf_new_2d(a, SHEAF_F16, k->n_window, k->n_tokens), "inp_window");
    }
    b->in.outputs = k->n_out < k->n_tokens ? input(sheaf_new_1d(a, SHEAF_I32, k->n_out), "inp_out_ids") : NULL;
}

/* The announced host address of a whole input, NULL where the graph has none; *wrong: it has, but not in host memory.
 */
static void *whole(sheaf_tensor *t, bool *wrong) {
    void *p = t ? sheaf_host_write(t, 0, sheaf_nbytes(t)) : NULL;
    if (t && !p) *wrong = true;
    return p;
}

/* Rows of the wanted tokens; where none is wanted, the graph still computes one, and nobody reads it. */
static void fill_outputs(const sheaf_context *c, int32_t first, int32_t n, int32_t *rows) {
    int32_t at = 0;
    for (int32_t i = 0; i < n; i++)
        if (c->batch.want[first + i]) rows[at++] = i;
    if (at == 0) rows[0] = 0;
}

/* Which cells the tokens go to, and which cells they see. */
static void fill_cells(const sheaf_context *c, int32_t first, int32_t n, bool windowed, int64_t *cells,
                       uint16_t *mask) {
    const full_batch *b = &c->batch;
    const kv_cells *k = windowed ? &c->window_cells : &c->cells;
    const int32_t *claimed = windowed ? c->window_claimed : c->claimed;
    int32_t window = windowed ? c->model->hp.window : 0, n_kv = windowed ? c->key.n_window : c->key.n_kv;
    for (int32_t i = 0; i < n; i++) {
        cells[i] = claimed[first + i];
        kv_cells_mask(k, b->seq[first + i], b->pos[first + i], window, n_kv, mask + (size_t)i * (size_t)n_kv);
    }
}

sheaf_status graph_inputs_fill(sheaf_context *c, int32_t first, int32_t n) {
    const graph_inputs *in = &c->in;
    const full_batch *b = &c->batch;
    bool wrong = false;
    int32_t *tokens = whole(in->tokens, &wrong), *positions = whole(in->positions, &wrong);
    int64_t *cells = whole(in->cells, &wrong), *window_cells = whole(in->window_cells, &wrong);
    uint16_t *mask = whole(in->mask, &wrong), *window = whole(in->window, &wrong);
    int32_t *outputs = whole(in->outputs, &wrong);
    if (wrong) return sheaf_fail(SHEAF_E_INTERNAL, "an input of the graph does not lie in host memory");
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = b->token[first + i];
        positions[i] = b->pos[first + i];
    }
    if (mask) fill_cells(c, first, n, false, cells, mask);
    if (window) fill_cells(c, first, n, true, window_cells, window);
    if (outputs) fill_outputs(c, first, n, outputs);
    return SHEAF_OK;
}
