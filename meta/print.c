/* A plan as text: its steps, why each is there, and as a graph for dot. */
#include <inttypes.h>

#include "meta/plan_internal.h"

static const char *value_name(const meta_plan *p, int32_t v, char *buf, size_t n) {
    if (v < 0) {
        snprintf(buf, n, "-");
    } else if (p->slots[p->values[v].slot].name[0]) {
        snprintf(buf, n, "%s", p->slots[p->values[v].slot].name);
    } else {
        snprintf(buf, n, "%%%d", p->values[v].slot);
    }
    return buf;
}

static const char *kind_name(item_kind k) {
    static const char *const names[] = {[ITEM_NODE] = "node",
                                        [ITEM_SLICE] = "slice",
                                        [ITEM_CUT_BACK] = "cut back",
                                        [ITEM_SUM] = "sum",
                                        [ITEM_GATHER] = "gather"};
    return names[k];
}

static const char *item_name(const meta_plan *p, const plan_item *t) {
    if (t->kind != ITEM_NODE) return kind_name(t->kind);
    sheaf_op op = p->slots[t->node].op;
    return sheaf_op_name(t->as_view && !sheaf_op_is_header(op) ? SHEAF_OP_VIEW : op);
}

static void print_sources(const meta_plan *p, const plan_item *t, FILE *out) {
    char name[SHEAF_MAX_NAME + 16];
    const char *comma = "";
    if (t->root >= 0) {
        fprintf(out, "%s", value_name(p, t->root, name, sizeof name));
        comma = ", ";
    }
    for (int j = 0; j < SHEAF_MAX_SRC; j++) {
        if (t->src[j] < 0) continue;
        fprintf(out, "%s%s", comma, value_name(p, t->src[j], name, sizeof name));
        comma = ", ";
    }
}

/* "h = mul_mat(w, x)  AXIS(0) [4:{0}] [4:{1}]  # matmul, column parallel" */
static void print_local(const meta_plan *p, const plan_item *t, bool explain, FILE *out) {
    char name[SHEAF_MAX_NAME + 16], layout[512];
    const char *op = item_name(p, t);
    fprintf(out, "  %s = %s(", value_name(p, t->out, name, sizeof name), op);
    print_sources(p, t, out);
    fprintf(out, ")  %s", sheaf_layout_text(&p->values[t->out].layout, layout, sizeof layout));
    if (explain && t->rule) fprintf(out, "  # %s", t->rule);
    fprintf(out, "\n");
}

static void print_collective(const meta_plan *p, const plan_step *step, bool explain, FILE *out) {
    const plan_item *t = &p->items[step->item];
    const plan_value *from = &p->values[t->src[0]];
    char name[SHEAF_MAX_NAME + 16];
    const char *why;
    fprintf(out, "%s ", kind_name(t->kind));
    print_sources(p, t, out);
    fprintf(out, " [%" PRId64 " x %" PRId64 " %s]", p->slots[from->slot].ne[0], sheaf_nrows(&p->slots[from->slot]),
            sheaf_type_name(from->type));
    if (t->add) fprintf(out, " + %s", value_name(p, t->residual, name, sizeof name));
    if (t->add) fprintf(out, " -> %s", value_name(p, t->out, name, sizeof name));
    if (t->norm) fprintf(out, ", normed by %s", value_name(p, t->norm_weight, name, sizeof name));
    if (t->norm) fprintf(out, " -> %s", value_name(p, t->norm_out, name, sizeof name));
    fprintf(out, "\n");
    if (!explain) return;
    fprintf(out, "  # for %s: %s; engine %s", p->slots[t->node].name, t->rule ? t->rule : "-",
            sheaf_comm_op_engine(step->op, &why));
    fprintf(out, " (%s)\n", why);
}

static void print_piece(const meta_plan *p, const plan_piece *piece, bool explain, FILE *out) {
    fprintf(out, "run\n");
    for (int32_t i = piece->first_item; i < piece->end_item; i++) {
        const plan_item *t = &p->items[i];
        if (!t->dropped && !is_collective(t->kind)) print_local(p, t, explain, out);
    }
}

static void print_reshards(const meta_plan *p, FILE *out) {
    char from[256], to[256];
    for (int32_t i = 0; i < p->n_reshards; i++) {
        const sheaf_plan_reshard *r = &p->reshards[i];
        fprintf(out, "reshard %s for %s (%s): %s -> %s, %zu bytes: %s\n", r->tensor, r->node, sheaf_op_name(r->op),
                sheaf_layout_text(&r->from, from, sizeof from), sheaf_layout_text(&r->to, to, sizeof to), r->bytes,
                r->rule);
    }
}

static void print_memory(const meta_plan *p, FILE *out) {
    for (int i = 0; i < p->n_local; i++) {
        fprintf(out, "memory of %s: %zu bytes compute, %zu staging\n", p->device->members[i]->name, p->compute_bytes[i],
                p->staging_list[i]);
    }
}

static void print_steps(const meta_plan *p, bool explain, FILE *out) {
    fprintf(out, "%d nodes, %d pieces, %d steps, %d collectives, %d reshards\n", p->n_slots - p->n_leafs, p->n_pieces,
            p->n_steps, p->n_collectives, p->n_reshards);
    for (int32_t k = 0; k < p->n_steps; k++) {
        fprintf(out, "%d: ", k);
        if (p->steps[k].is_collective) {
            print_collective(p, &p->steps[k], explain, out);
        } else {
            print_piece(p, &p->pieces[p->steps[k].piece], explain, out);
        }
    }
    if (!explain) return;
    print_reshards(p, out);
    print_memory(p, out);
    fprintf(out, "compiled in %.0f us, hash %016" PRIx64 "\n", p->compile_us, p->hash);
}

static void print_dot(const meta_plan *p, FILE *out) {
    char a[SHEAF_MAX_NAME + 16];
    fprintf(out, "digraph plan {\n  rankdir=TB;\n  node [shape=box, fontsize=10];\n");
    for (int32_t i = 0; i < p->n_items; i++) {
        const plan_item *t = &p->items[i];
        if (t->dropped) continue;
        const char *op = item_name(p, t);
        const char *style = is_collective(t->kind) ? ", style=filled, fillcolor=lightblue"
                            : t->kind == ITEM_NODE ? ""
                                                   : ", style=dashed";
        fprintf(out, "  v%d [label=\"%s\\n%s\"%s];\n", t->out, op, value_name(p, t->out, a, sizeof a), style);
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            if (t->src[j] >= 0 && p->values[t->src[j]].made_by >= 0) fprintf(out, "  v%d -> v%d;\n", t->src[j], t->out);
        }
        if (t->root >= 0 && p->values[t->root].made_by >= 0)
            fprintf(out, "  v%d -> v%d [style=dotted];\n", t->root, t->out);
        if (t->residual >= 0 && p->values[t->residual].made_by >= 0)
            fprintf(out, "  v%d -> v%d;\n", t->residual, t->out);
        if (t->norm_out >= 0)
            fprintf(out, "  v%d [label=\"norm\\n%s\"];\n  v%d -> v%d;\n", t->norm_out,
                    value_name(p, t->norm_out, a, sizeof a), t->out, t->norm_out);
    }
    fprintf(out, "}\n");
}

sheaf_status sheaf_plan_print(const sheaf_plan *plan, sheaf_plan_format format, FILE *out) {
    const meta_plan *p = (const meta_plan *)plan;
    if (format == SHEAF_PLAN_DOT) {
        print_dot(p, out);
    } else {
        print_steps(p, format == SHEAF_PLAN_EXPLAIN, out);
    }
    return ferror(out) ? sheaf_fail(SHEAF_E_IO, "printing a plan") : SHEAF_OK;
}
