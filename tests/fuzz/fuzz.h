/* The entry of every fuzz target: libFuzzer's when built with SHEAF_FUZZ and clang, else called by
 * smoke.c on the seeds and on a fixed number of changed seeds. Must not abort on any input. */
#ifndef SHEAF_TESTS_FUZZ_H
#define SHEAF_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
