/* A main for fuzz targets without libFuzzer, so that any compiler runs a smoke test of them:
 *
 *     fuzz-gguf CORPUS [CHANGES]
 *
 * runs each file of the folder as it is, then CHANGES changed copies of it (default 2000), the same
 * ones every time. It finds what a crash or a sanitizer shows; coverage-guided search is libFuzzer's. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 1 << 20 };

static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* One to four edits: a byte, an extreme word, a cut, or a piece copied elsewhere. */
static size_t change(uint8_t *p, size_t n, uint64_t *rng) {
    static const uint64_t words[] = {0, 1, 0x7fffffff, 0xffffffff, INT64_MAX, UINT64_MAX, (uint64_t)1 << 32};
    for (uint64_t edits = 1 + next_random(rng) % 4; edits && n > 8; edits--) {
        size_t at = next_random(rng) % (n - 8), from = next_random(rng) % (n - 8);
        switch (next_random(rng) % 8) {
        case 0: memcpy(p + at, &words[next_random(rng) % 7], 8); break;
        case 1: memcpy(p + at, &words[next_random(rng) % 7], 4); break;
        case 2: n = at + 8; break;
        case 3: memmove(p + at, p + from, 8); break;
        default: p[at] = (uint8_t)next_random(rng); break;
        }
    }
    return n;
}

/* Gives the target a copy of exactly n bytes, so that sanitizers see a read beyond them. */
static int run_one(const uint8_t *p, size_t n) {
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy) return 1;
    if (n) memcpy(copy, p, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
    return 0;
}

static int run_file(const char *path, long changes) {
    static uint8_t whole[LARGEST], changed[LARGEST];
    FILE *f = fopen(path, "rb");
    if (!f) return 1;
    size_t n = fread(whole, 1, sizeof whole, f);
    fclose(f);
    uint64_t rng = n;
    int failed = run_one(whole, n);
    for (long i = 0; i < changes && !failed; i++) {
        memcpy(changed, whole, n);
        failed = run_one(changed, change(changed, n, &rng));
    }
    return failed;
}

int main(int argc, char **argv) {
    DIR *folder = argc > 1 ? opendir(argv[1]) : NULL;
    long changes = argc > 2 ? strtol(argv[2], NULL, 10) : 2000;
    if (!folder) {
        fprintf(stderr, "usage: %s CORPUS [CHANGES]\n", argv[0]);
        return 2;
    }
    int files = 0, failed = 0;
    for (struct dirent *e; (e = readdir(folder)) && !failed;) {
        char path[4096];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        failed = run_file(path, changes);
        files++;
    }
    closedir(folder);
    printf("%d seeds, %ld changes each\n", files, changes);
    return failed || files == 0;
}
