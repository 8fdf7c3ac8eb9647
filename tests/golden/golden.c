/* Reader of golden files. Contract in golden.h. */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_ids(FILE *f, int *n, int *ids) {
    if (fscanf(f, "%d", n) != 1 || *n < 0 || *n > GOLDEN_MAX_TOKENS) return -1;
    for (int i = 0; i < *n; i++)
        if (fscanf(f, "%d", &ids[i]) != 1) return -1;
    return 0;
}

static int read_floats(FILE *f, int n, float *out) {
    for (int i = 0; i < n; i++)
        if (fscanf(f, "%f", &out[i]) != 1) return -1;
    return 0;
}

static int read_row(FILE *f, golden *g) {
    int n_vocab;
    if (g->n_rows == GOLDEN_MAX_ROWS || fscanf(f, "%d %d", &g->position[g->n_rows], &n_vocab) != 2) return -1;
    if (n_vocab <= 0 || n_vocab > 1 << 20 || (g->n_rows && n_vocab != g->n_vocab)) return -1;
    float *grown = realloc(g->logits, sizeof *grown * (size_t)n_vocab * (size_t)(g->n_rows + 1));
    if (!grown) return -1;
    g->logits = grown;
    g->n_vocab = n_vocab;
    return read_floats(f, n_vocab, grown + (size_t)n_vocab * (size_t)g->n_rows++);
}

/* The rest of the line after one blank, as it is. */
static int read_text(FILE *f, char *out, int size) {
    if (fgetc(f) != ' ' || !fgets(out, size, f)) return -1;
    out[strcspn(out, "\n")] = 0;
    return 0;
}

static int read_entry(FILE *f, const char *key, golden *g) {
    int n;
    if (key[0] == '#') return fscanf(f, "%*[^\n]") < 0 ? -1 : 0;
    if (!strcmp(key, "prompt")) return read_text(f, g->prompt, sizeof g->prompt);
    if (!strcmp(key, "tokens")) return read_ids(f, &g->n_tokens, g->tokens);
    if (!strcmp(key, "greedy")) return read_ids(f, &g->n_greedy, g->greedy);
    if (!strcmp(key, "logits")) return read_row(f, g);
    if (!strcmp(key, "gaps")) return fscanf(f, "%d", &n) == 1 && n == g->n_greedy ? read_floats(f, n, g->gaps) : -1;
    return -1;
}

int golden_read(const char *path, golden *out) {
    char key[16];
    int rc = 0;
    memset(out, 0, sizeof *out);
    FILE *f = fopen(path, "r");
    if (!f) {
        perror(path);
        return -1;
    }
    while (!rc && fscanf(f, "%15s", key) == 1) rc = read_entry(f, key, out);
    fclose(f);
    if (rc) {
        fprintf(stderr, "golden: reading %s: bad entry at '%s'\n", path, key);
        golden_free(out);
    }
    return rc;
}

void golden_free(golden *g) {
    free(g->logits);
    g->logits = NULL;
}

double golden_nmse(const float *got, const float *want, int n) {
    double error = 0, size = 0;
    for (int i = 0; i < n; i++) {
        double d = (double)got[i] - want[i];
        error += d * d;
        size += (double)want[i] * want[i];
    }
    return error / size;
}
