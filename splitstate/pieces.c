/* Where a device's shard lies in the bytes of the whole tensor: the only segment arithmetic there is.
 *
 * A contiguous tensor cut along dimension a repeats, with a period of all the bytes up to and
 * including that dimension; in each period the runs follow one another, and the shard has the same with
 * only its own runs:
 *
 *     global  |AAAABBCC|AAAABBCC|      period = bytes of dimensions 0..a
 *     local   |AAAACC|AAAACC|          device of A and C
 *
 * set, get, their 2-D twins, slicing while loading, gathering and re-cutting all walk this. */
#include "splitstate/splitstate.h"

void sheaf_pieces_begin(sheaf_pieces *w, const sheaf_layout *l, int device, sheaf_type type, const int64_t ne[4],
                        size_t offset, size_t size) {
    *w = (sheaf_pieces){.layout = l, .device = device, .begin = offset, .end = offset + size};
    if (l->kind != SHEAF_AXIS) return;
    if (l->axis == 0) {
        w->unit = sheaf_type_bytes(type);
        w->unit_elements = (size_t)sheaf_type_block(type);
    } else {
        w->unit = sheaf_row_bytes(type, ne[0]);
        w->unit_elements = 1;
        for (int i = 1; i < l->axis; i++) w->unit *= (size_t)ne[i];
    }
    w->period = (size_t)ne[l->axis] / w->unit_elements * w->unit;
    w->local_period = (size_t)sheaf_layout_share(l, device, 0) / w->unit_elements * w->unit;
    if (w->period == 0 || w->local_period == 0) {
        w->end = w->begin; /* the walk is over before it starts */
        return;
    }
    size_t first = offset / w->period;
    w->global0 = first * w->period;
    w->local0 = first * w->local_period;
}

/* The next run of the shard, however little of it was asked for. False: past the end. */
static bool next_run(sheaf_pieces *w, sheaf_piece *out) {
    while (w->global0 + w->at_global < w->end) {
        if (w->run == w->layout->n_runs) {
            w->global0 += w->period;
            w->local0 += w->local_period;
            w->at_global = w->at_local = 0;
            w->run = 0;
            continue;
        }
        const sheaf_run *r = &w->layout->runs[w->run++];
        size_t bytes = (size_t)r->length / w->unit_elements * w->unit;
        *out = (sheaf_piece){w->global0 + w->at_global, w->local0 + w->at_local, bytes, w->run - 1};
        w->at_global += bytes;
        if (!(r->devices >> w->device & 1)) continue;
        w->at_local += bytes;
        return true;
    }
    return false;
}

bool sheaf_pieces_next(sheaf_pieces *w, sheaf_piece *out) {
    if (w->layout->kind != SHEAF_AXIS) { /* the shard is the whole tensor */
        *out = (sheaf_piece){w->begin, w->begin, w->end - w->begin, -1};
        w->begin = w->end;
        return out->bytes > 0;
    }
    while (next_run(w, out)) {
        size_t lo = out->global > w->begin ? out->global : w->begin;
        size_t hi = out->global + out->bytes < w->end ? out->global + out->bytes : w->end;
        if (lo >= hi) continue;
        *out = (sheaf_piece){lo, out->local + (lo - out->global), hi - lo, out->run};
        return true;
    }
    return false;
}
