/* An imatrix while it is filled: imatrix_read.c reads the two forms, imatrix.c keeps entries and finds them. */
#ifndef SHEAF_MODELS_IMATRIX_INTERNAL_H
#define SHEAF_MODELS_IMATRIX_INTERNAL_H

#include "models/quantize.h"

typedef struct imatrix_entry {
    char *name;
    float *weights;
    int64_t n;
} imatrix_entry;

struct sheaf_imatrix {
    char *path, *dataset;
    imatrix_entry *entries; /* sorted by name once read */
    int n, cap;
    uint32_t chunks;
};

/* Adds an entry of n weights, to be filled; its name is copied. */
sheaf_status imatrix_add(sheaf_imatrix *m, sheaf_str name, int64_t n, float **weights);
sheaf_status imatrix_set_dataset(sheaf_imatrix *m, sheaf_str text);

sheaf_status imatrix_read_gguf(sheaf_imatrix *m, const sheaf_gguf *g);
sheaf_status imatrix_read_dat(sheaf_imatrix *m, const uint8_t *bytes, size_t n);

#endif
