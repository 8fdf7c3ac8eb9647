/* The random models of tests/golden/cases.txt, written as GGUF.
 *
 * One noun: a case, a line of that file. Models are made when a test wants them, since their bytes
 * would not fit a repository; the same case gives the same bytes on every machine. Nothing of sheaf
 * is used here, so a fault in sheaf's GGUF or quant code cannot hide in its own fixtures.
 *
 *     fixture_case c;
 *     if (fixture_find("tests/golden/cases.txt", "h9k3-q8_0", &c) || fixture_write(&c, "/tmp/m.gguf"))
 *         ... a line on stderr has said why
 */
#ifndef SHEAF_TESTS_GOLDEN_FIXTURE_H
#define SHEAF_TESTS_GOLDEN_FIXTURE_H

#include <stdio.h>

typedef struct fixture_case {
    char name[32], family[16], type[8], alt[8], rope[8];
    int layers, width, heads, kv_heads, head_size, feed_forward, vocab, tied, bias;
} fixture_case;

/* The next case of an open cases file: 1 found, 0 end of file, -1 a bad line (said on stderr). */
int fixture_next(FILE *file, fixture_case *out);

/* The case called name. 0, or -1 with a line on stderr. */
int fixture_find(const char *cases_path, const char *name, fixture_case *out);

/* Writes the model of a case. 0, or -1 with a line on stderr; a partial file may stay behind. */
int fixture_write(const fixture_case *c, const char *path);

#endif
