/* Compiling a collective: its description is checked and copied, an engine chosen, the order of its additions made. */
#include "collectives/comm_internal.h"

#include <string.h>

static sheaf_status check_pieces(const sheaf_comm *c, const sheaf_comm_desc *d) {
    if (d->n_pieces < 0 || (d->n_pieces && !d->pieces) || !d->share) {
        return sheaf_fail(SHEAF_E_ARGUMENT, "compiling '%s': no pieces or shares", d->name);
    }
    for (int k = 0; k < c->n_world; k++) {
        if (d->share[k] < 0) return sheaf_fail(SHEAF_E_ARGUMENT, "compiling '%s': negative share", d->name);
    }
    for (int32_t k = 0; k < d->n_pieces; k++) {
        const sheaf_gather_piece *p = &d->pieces[k];
        bool inside = p->from >= 0 && p->from < c->n_world && p->length >= 0 && p->at >= 0 && p->src_at >= 0 &&
                      p->at <= d->row - p->length && p->src_at <= d->share[p->from] - p->length;
        if (!inside) {
            return sheaf_fail(SHEAF_E_RANGE, "compiling '%s': piece %d (device %d, %lld elements) lies outside its row",
                              d->name, (int)k, (int)p->from, (long long)p->length);
        }
    }
    return SHEAF_OK;
}

static sheaf_status check_desc(const sheaf_comm *c, const sheaf_comm_desc *d) {
    size_t bytes;
    if (d->kind < SHEAF_COMM_ALLREDUCE || d->kind > SHEAF_COMM_BARRIER) {
        return sheaf_fail(SHEAF_E_ARGUMENT, "compiling '%s': unknown kind %d", d->name, (int)d->kind);
    }
    if (d->kind == SHEAF_COMM_BARRIER) return SHEAF_OK;
    if (d->row < 0 || d->max_rows < 0 || sheaf_mul_overflow((size_t)d->row, (size_t)d->max_rows, &bytes) ||
        bytes > (size_t)PTRDIFF_MAX / 16) {
        return sheaf_fail(SHEAF_E_RANGE, "compiling '%s': %lld elements in %lld rows", d->name, (long long)d->row,
                          (long long)d->max_rows);
    }
    if (!sheaf_type_valid(d->type) || sheaf_type_is_quantized(d->type)) {
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "compiling '%s': elements of type %s", d->name,
                          sheaf_type_name(d->type));
    }
    if (d->kind == SHEAF_COMM_ALLREDUCE) {
        bool f32 = d->type == SHEAF_F64 || d->type == SHEAF_F32;
        if (!sum_kind_of(d->type) || ((d->epilogue.add || d->epilogue.norm) && !f32)) {
            return sheaf_fail(SHEAF_E_UNSUPPORTED, "compiling '%s': a sum of %s%s", d->name, sheaf_type_name(d->type),
                              f32 ? "" : " with this epilogue");
        }
        return SHEAF_OK;
    }
    if (d->kind == SHEAF_COMM_ALLGATHER) return check_pieces(c, d);
    if (d->root < 0 || d->root >= c->n_world) {
        return sheaf_fail(SHEAF_E_ARGUMENT, "compiling '%s': no device %d in a world of %d", d->name, (int)d->root,
                          c->n_world);
    }
    return SHEAF_OK;
}

/* The op's own copies of what the description points at. */
static sheaf_status own_desc(sheaf_comm_op *op, const sheaf_comm_desc *d) {
    op->d.name = sheaf_strdup(d->name && d->name[0] ? d->name : "collective");
    op->d.pieces = NULL;
    op->d.share = NULL;
    if (!op->d.name) goto no_memory;
    if (d->kind != SHEAF_COMM_ALLGATHER) return SHEAF_OK;
    size_t pieces = sizeof *d->pieces * (size_t)d->n_pieces, shares = sizeof *d->share * (size_t)op->comm->n_world;
    op->d.pieces = sheaf_malloc(pieces);
    op->d.share = sheaf_malloc(shares);
    if (!op->d.pieces || !op->d.share) goto no_memory;
    if (pieces) memcpy((void *)op->d.pieces, d->pieces, pieces);
    memcpy((void *)op->d.share, d->share, shares);
    return SHEAF_OK;
no_memory:
    return sheaf_fail(SHEAF_E_NO_MEMORY, "compiling a collective");
}

static sheaf_status own_posts(sheaf_comm_op *op) {
    size_t n = (size_t)op->comm->n_local;
    op->posts = sheaf_calloc(n * POST_SLOTS, sizeof *op->posts);
    op->members = comm_zeros(n * sizeof *op->members);
    if (!op->posts || !op->members) return sheaf_fail(SHEAF_E_NO_MEMORY, "compiling '%s'", op->d.name);
    for (size_t k = 0; k < n * POST_SLOTS; k++) {
        op->posts[k].op = op;
        op->posts[k].i = (int32_t)(k / POST_SLOTS);
    }
    return SHEAF_OK;
}

static void program_of_devices(sheaf_comm_op *op) {
    canon_node all[MAX_DEVICES];
    int n = op->comm->n_world;
    for (int k = 0; k < n; k++) all[k] = (canon_node){k, 1};
    canon_build(n, (canon_node){0, n}, op->d.empty, all, n, &op->program);
}

sheaf_status sheaf_comm_compile(sheaf_comm *c, const sheaf_comm_desc *desc, sheaf_comm_op **out) {
    *out = NULL;
    sheaf_comm_desc d = *desc;
    if (!d.name) d.name = "collective";
    sheaf_status s = check_desc(c, &d);
    if (s) return s;
    sheaf_comm_op *op = sheaf_calloc(1, sizeof *op);
    if (!op) return sheaf_fail(SHEAF_E_NO_MEMORY, "compiling '%s'", d.name);
    op->comm = c;
    op->d = d;
    op->kind = sum_kind_of(d.type);
    op->element = d.kind == SHEAF_COMM_BARRIER ? 0 : sheaf_type_bytes(d.type);
    s = own_desc(op, &d);
    if (!s) s = own_posts(op);
    if (!s) s = engine_choose(c, &op->d, c->pin, &op->engine, op->reason, sizeof op->reason);
    if (!s) program_of_devices(op);
    if (!s && op->engine->compile) s = op->engine->compile(op);
    op->next = c->ops;
    if (c->ops) c->ops->prev = op;
    c->ops = op;
    if (s) {
        sheaf_comm_op_free(op);
        return s;
    }
    *out = op;
    return SHEAF_OK;
}

void sheaf_comm_op_free(sheaf_comm_op *op) {
    if (!op) return;
    if (op->prev) op->prev->next = op->next;
    if (op->next) op->next->prev = op->prev;
    if (op->comm->ops == op) op->comm->ops = op->next;
    if (op->engine && op->engine->op_free) op->engine->op_free(op);
    sheaf_free(op->members);
    sheaf_free(op->posts);
    sheaf_free((void *)op->d.share);
    sheaf_free((void *)op->d.pieces);
    sheaf_free((void *)op->d.name);
    sheaf_free(op);
}

const char *sheaf_comm_op_engine(const sheaf_comm_op *op, const char **reason) {
    if (reason) *reason = op->reason;
    return op->engine->info.name;
}
