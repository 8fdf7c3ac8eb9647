/* What the tests of text share: files of ../shared/data (skipped, with a reason, where absent),
 * whole files in memory, and the tokenizer of a GGUF file. */
#ifndef SHEAF_TESTS_TEXT_SUPPORT_H
#define SHEAF_TESTS_TEXT_SUPPORT_H

#include "models/text/text.h"
#include "tests/support/expect.h"

#include <stdlib.h>

/* Path of a file of the shared test data: $SHEAF_SHARED, else beside the repository. Static buffer
 * per call site's thread. NULL: the file is not there. */
static inline const char *shared_file(const char *name) {
    static __thread char path[1024];
    const char *base = getenv("SHEAF_SHARED");
    snprintf(path, sizeof(path), "%s/data/%s", base ? base : SHEAF_SOURCE_DIR "/../shared", name);
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f ? path : NULL;
}

/* A whole file, NUL added; the caller frees. Ends the test if it cannot be read. */
static inline char *read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    cr_assert(f, "%s cannot be opened", path);
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *text = malloc((size_t)size + 1);
    cr_assert(text && fread(text, 1, (size_t)size, f) == (size_t)size, "%s cannot be read", path);
    fclose(f);
    text[size] = 0;
    *n = (size_t)size;
    return text;
}

/* The tokenizer of a file; ends the test if there is none. */
static inline sheaf_tokenizer *open_tokenizer(const char *path) {
    sheaf_gguf *g;
    sheaf_tokenizer *t;
    expect_ok(sheaf_gguf_open(path, &g));
    expect_ok(sheaf_tokenizer_new(g, NULL, &t));
    sheaf_gguf_close(g);
    return t;
}

#endif
