/* What the scheduler decided, as text: splits with their inputs, and at level 2 each node with its cause. */
#include "sched/sched_internal.h"

static void size_text(size_t bytes, char out[16]) {
    if (bytes >= (size_t)10 << 20)
        snprintf(out, 16, "%zuM", bytes >> 20);
    else
        snprintf(out, 16, "%zuK", (bytes + 1023) >> 10);
}

static void print_head(const sheaf_sched *s, int32_t k, FILE *out) {
    const sched_split *p = &s->splits[k];
    fprintf(out, "## split %d: %s, %d nodes, %d inputs", k, sched_device(s, p->backend)->name, p->graph->n_nodes,
            p->n_inputs);
    for (int32_t i = 0; i < p->n_inputs; i++) {
        char size[16];
        size_text(sheaf_nbytes(p->inputs[i].to), size);
        fprintf(out, "%s[%s (%s)]", i ? " " : ": ", p->inputs[i].from->name, size);
    }
    fputc('\n', out);
}

static void print_node(const sheaf_sched *s, int32_t i, FILE *out) {
    const sheaf_tensor *t = s->user->nodes[i];
    char size[16], shape[96];
    size_text(sheaf_nbytes(t), size);
    fprintf(out, "node %4d %-9s %-24s %-20s %6s  %s %s:", i, sheaf_op_name(t->op), t->name,
            sheaf_shape_text(t, shape, sizeof shape), size, sched_device(s, s->backend_of[t->index])->name,
            sheaf_cause_text((sheaf_cause)s->cause[t->index]));
    for (int k = 0; k < SHEAF_MAX_SRC; k++)
        if (t->src[k]) fprintf(out, " %s", t->src[k]->name);
    fputc('\n', out);
}

sheaf_status sheaf_sched_print(const sheaf_sched *s, int level, FILE *out) {
    if (!s->user) return sheaf_fail(SHEAF_E_ARGUMENT, "scheduler: no graph was split yet");
    for (int32_t k = 0; k < s->n_splits; k++) print_head(s, k, out);
    for (int32_t i = 0; level > 1 && i < s->user->n_nodes; i++)
        if (!sheaf_op_is_header(s->user->nodes[i]->op)) print_node(s, i, out);
    for (int b = 0; b < s->n; b++) {
        char size[16];
        size_text(s->stats.compute_bytes[b], size);
        fprintf(out, "## compute memory of %s: %s\n", sched_device(s, b)->name, size);
    }
    return ferror(out) ? sheaf_fail(SHEAF_E_IO, "printing the schedule") : SHEAF_OK;
}
