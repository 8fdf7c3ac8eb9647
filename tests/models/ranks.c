/* A model over several ranks, for mpirun: rank 0 decodes, the others follow, and the bits are those of
 * one process.
 *
 *     mpirun -n 2 ranks MODEL DEVICES HASH      each rank brings DEVICES ("cpu", "cpu/2")
 *     ranks MODEL DEVICES                       alone: prints the hash to compare with
 *
 * Exit codes: 0 all well, 1 another hash or an error (said on stderr). Not a Criterion test: a process can
 * initialise MPI once. */
#include "models/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what) {
    fprintf(stderr, "ranks: %s: %s\n", what, sheaf_error());
    return 1;
}

/* The best logits alone, then the row that they are of: no process holds it whole, and it is the same. */
static sheaf_status lead_best(sheaf_context *c, int32_t id, uint64_t *hash) {
    int32_t n = 0;
    sheaf_status s = sheaf_decode(c, &(sheaf_batch){.n = 1, .token = &id, .best = true});
    const sheaf_best *best = sheaf_logits_best(c, 0, &n);
    if (!s && (!best || n != 8 || sheaf_logits(c, 0))) s = sheaf_fail(SHEAF_E_INTERNAL, "%d of the best logits", n);
    if (!s) s = sheaf_logits_fetch(c);
    for (int32_t i = 0; i < n && !s; i++)
        if (sheaf_logits(c, 0)[best[i].id] != best[i].logit)
            s = sheaf_fail(SHEAF_E_INTERNAL, "place %d of the best: id %d", i, best[i].id);
    if (!s) *hash = *hash * 31 + sheaf_logits_hash(c, 0) + (uint64_t)best[7].id;
    return s;
}

/* A state is the same bytes from any number of ranks, and after it came back the next token is the same. */
static sheaf_status lead_state(sheaf_context *c, int32_t id, uint64_t *hash) {
    size_t n = 0, got = 0;
    void *note = NULL;
    sheaf_status s = sheaf_state_size(c, 4, &n);
    uint8_t *bytes = s ? NULL : malloc(n);
    if (!s) s = sheaf_state_get(c, "note", 4, bytes, n);
    for (size_t i = 0; i < n && !s; i++) *hash = (*hash ^ bytes[i]) * 0x100000001b3u;
    if (!s) s = sheaf_decode(c, &(sheaf_batch){.n = 1, .token = &id});
    uint64_t before = s ? 0 : sheaf_logits_hash(c, 0);
    if (!s) s = sheaf_kv_clear(c);
    if (!s) s = sheaf_state_set(c, bytes, n, &note, &got);
    if (!s && (got != 4 || memcmp(note, "note", 4))) s = sheaf_fail(SHEAF_E_INTERNAL, "a note of %zu bytes", got);
    if (!s) s = sheaf_decode(c, &(sheaf_batch){.n = 1, .token = &id});
    if (!s && sheaf_logits_hash(c, 0) != before) s = sheaf_fail(SHEAF_E_INTERNAL, "other logits after a restore");
    sheaf_free(note);
    bytes[n - 1] ^= 1; /* refused on rank 0 alone: the others hear nothing of it */
    if (!s && sheaf_state_set(c, bytes, n, NULL, NULL) != SHEAF_E_FORMAT)
        s = sheaf_fail(SHEAF_E_INTERNAL, "an altered state was taken");
    free(bytes);
    *hash += before;
    return s;
}

/* What rank 0 does: a prompt in micro-batches, a batch that is refused, a removal, tokens one by one. */
static sheaf_status lead(sheaf_context *c, int32_t n_vocab, uint64_t *hash) {
    int32_t ids[40], bad = n_vocab;
    for (int i = 0; i < 40; i++) ids[i] = (i * 37 + 5) % n_vocab;
    sheaf_status s = sheaf_decode(c, &(sheaf_batch){.n = 40, .token = ids});
    if (!s && sheaf_decode(c, &(sheaf_batch){.n = 1, .token = &bad}) != SHEAF_E_RANGE)
        s = sheaf_fail(SHEAF_E_INTERNAL, "a token outside the vocabulary was taken");
    if (!s) s = sheaf_kv_remove(c, 0, 30, -1);
    for (int i = 0; i < 10 && !s; i++) s = sheaf_decode(c, &(sheaf_batch){.n = 1, .token = &ids[i]});
    *hash = sheaf_logits_hash(c, 0);
    if (s) return s;
    sheaf_kv_clear(c);
    s = sheaf_decode(c, &(sheaf_batch){.n = 3, .token = ids});
    *hash ^= sheaf_logits_hash(c, 0);
    for (int i = 0; i < 3 && !s; i++) s = lead_best(c, ids[i], hash);
    if (!s) s = lead_state(c, ids[7], hash);
    return s;
}

static sheaf_status work(sheaf_world *world, sheaf_model *m, sheaf_context *c, uint64_t *hash) {
    (void)m;
    if (sheaf_world_rank(world) > 0) return sheaf_follow(c);
    return lead(c, sheaf_model_hparams(m)->n_vocab, hash);
}

int main(int argc, char **argv) {
    if (argc < 3) return fail("usage: ranks MODEL DEVICES [HASH]");
    sheaf_world *world = NULL;
    sheaf_registry *reg = NULL;
    sheaf_device *devices[8];
    sheaf_model *m = NULL;
    sheaf_context *c = NULL;
    int n = 0;
    uint64_t hash = 0;
    sheaf_status s = sheaf_world_open(&world);
    if (s) return fail("world");
    sheaf_open_options open = {.n_threads = 1}; /* one a device */
    s = sheaf_registry_new(&reg);
    if (!s) s = sheaf_devices_open(reg, argv[2], &open, devices, 8, &n);
    sheaf_model_options mo = {
        .registry = reg, .devices = devices, .n_devices = n, .devices_name = argv[2], .world = world};
    sheaf_context_options co = sheaf_context_defaults();
    co.n_ctx = 128;
    co.n_ubatch = 16;
    co.n_best = 8;
    if (!s) s = sheaf_model_load(argv[1], &mo, &m);
    if (!s) s = sheaf_context_new(m, &co, &c);
    if (!s) s = work(world, m, c, &hash);
    int code = s ? fail("running") : 0;
    int rank = sheaf_world_rank(world);
    sheaf_context_free(c);
    sheaf_model_free(m);
    sheaf_registry_free(reg);
    sheaf_world_close(world);
    if (code || rank > 0) return code;
    if (argc < 4) {
        printf("%016llx\n", (unsigned long long)hash);
        return 0;
    }
    if (strtoull(argv[3], NULL, 16) == hash) return 0;
    fprintf(stderr, "ranks: logits hash %016llx, expected %s\n", (unsigned long long)hash, argv[3]);
    return 1;
}
