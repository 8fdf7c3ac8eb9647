/* A file that appears under its name only when it is whole: the GGUF writer's, and that of saved states. */
#ifndef SHEAF_TENSOR_GGUF_OUTPUT_H
#define SHEAF_TENSOR_GGUF_OUTPUT_H

#include "tensor/status.h"

typedef struct gguf_output {
    int fd; /* -1: none */
    char *target, *temporary;
    uint64_t size;
} gguf_output;

/* A temporary file of `size` bytes in the folder of `path`, with its space reserved where that can be done. */
sheaf_status gguf_output_create(gguf_output *o, const char *path, uint64_t size);
sheaf_status gguf_output_write(const gguf_output *o, uint64_t at, const void *bytes, size_t n); /* any thread */
sheaf_status gguf_output_commit(gguf_output *o);
void gguf_output_abandon(gguf_output *o); /* removes what was not committed; also of an unused one with fd -1 */

#endif
