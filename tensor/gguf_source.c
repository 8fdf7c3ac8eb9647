/* The bytes under a GGUF reader: one regular file, or bytes in memory.
 *
 * Owns the descriptor, the header buffer and the map of a file. The header is read by pread into a
 * buffer that grows as parsing asks for more, rather than mapped: a mapped file that shrinks kills
 * the process at the next access, a short read is an error like any other.
 * Does not know what the bytes mean: gguf_parse.c does. */
#include "tensor/gguf_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIRST_LOAD = 64 << 10 };

/* A file is bad unless the machine has no more to give. */
static sheaf_status status_of(int code) {
    return code == EMFILE || code == ENFILE || code == ENOMEM ? SHEAF_E_NO_MEMORY : SHEAF_E_IO;
}

sheaf_status gguf_file_open(gguf_file *f, const char *path) {
    *f = (gguf_file){.fd = -1};
    /* O_NONBLOCK: opening a FIFO would wait for a writer; regular files do not mind. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return sheaf_fail(status_of(errno), "%s: %s", path, strerror(errno));
    sheaf_status s = SHEAF_OK;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        s = sheaf_fail(SHEAF_E_IO, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        s = sheaf_fail(SHEAF_E_IO, "%s: %s, not a file", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    } else if (!(f->path = sheaf_strdup(path))) {
        s = sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for its name", path);
    }
    if (s) {
        close(fd);
        return s;
    }
    f->fd = fd;
    f->size = (uint64_t)st.st_size;
    return SHEAF_OK;
}

sheaf_status gguf_file_memory(gguf_file *f, const void *bytes, size_t size) {
    *f = (gguf_file){.fd = -1, .size = size, .head = bytes, .loaded = size};
    f->path = sheaf_strdup("(memory)");
    return f->path ? SHEAF_OK : sheaf_fail(SHEAF_E_NO_MEMORY, "(memory): no memory for its name");
}

void gguf_file_close(gguf_file *f) {
    if (f->map && f->fd >= 0) munmap(f->map, (size_t)f->size);
    if (f->fd >= 0) close(f->fd);
    gguf_index_free(&f->keys);
    sheaf_free(f->entries);
    sheaf_free(f->strings);
    sheaf_free(f->tensors);
    sheaf_free(f->name_at);
    sheaf_free(f->owned);
    sheaf_free(f->path);
    *f = (gguf_file){.fd = -1};
}

int64_t gguf_file_pread(const gguf_file *f, uint64_t offset, void *dst, uint64_t n) {
    if (f->fd < 0) {
        uint64_t there = offset < f->size ? f->size - offset : 0;
        if (n > there) n = there;
        if (n) memcpy(dst, f->head + offset, (size_t)n);
        return (int64_t)n;
    }
    uint64_t got = 0;
    while (got < n) {
        /* Linux reads at most 2 GiB at a time; asking for less keeps the count in range everywhere. */
        size_t piece = n - got < (1u << 30) ? (size_t)(n - got) : (size_t)1 << 30;
        ssize_t r = pread(f->fd, (uint8_t *)dst + got, piece, (off_t)(offset + got));
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return -1;
        if (r == 0) break;
        got += (uint64_t)r;
    }
    return (int64_t)got;
}

sheaf_status gguf_file_load(gguf_file *f, uint64_t end) {
    if (end <= f->loaded) return SHEAF_OK;
    uint64_t want = f->loaded ? f->loaded * 2 : FIRST_LOAD;
    if (want < end) want = end;
    if (want > f->size) want = f->size;
    uint8_t *grown = sheaf_realloc(f->owned, (size_t)want);
    if (!grown)
        return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for %llu bytes of metadata", f->path,
                          (unsigned long long)want);
    f->owned = grown;
    f->head = grown;
    int64_t got = gguf_file_pread(f, f->loaded, grown + f->loaded, want - f->loaded);
    if (got < 0)
        return sheaf_fail(SHEAF_E_IO, "%s: reading metadata at byte %llu: %s", f->path, (unsigned long long)f->loaded,
                          strerror(errno));
    f->loaded += (uint64_t)got;
    if (f->loaded < end)
        return sheaf_fail(SHEAF_E_IO, "%s: the file shrank while it was read: it had %llu bytes, now ends at %llu",
                          f->path, (unsigned long long)f->size, (unsigned long long)f->loaded);
    return SHEAF_OK;
}

void gguf_file_trim(gguf_file *f, uint64_t end) {
    if (!f->owned || end >= f->loaded || end == 0) return;
    uint8_t *smaller = sheaf_realloc(f->owned, (size_t)end);
    if (!smaller) return; /* the larger one serves as well */
    f->owned = smaller;
    f->head = smaller;
    f->loaded = end;
}

sheaf_status gguf_file_same_size(const gguf_file *f) {
    if (f->fd < 0) return SHEAF_OK;
    struct stat st;
    if (fstat(f->fd, &st) != 0) return sheaf_fail(SHEAF_E_IO, "%s: %s", f->path, strerror(errno));
    if ((uint64_t)st.st_size != f->size)
        return sheaf_fail(SHEAF_E_IO, "%s: the file changed while it was open: it had %llu bytes, now has %llu",
                          f->path, (unsigned long long)f->size, (unsigned long long)st.st_size);
    return SHEAF_OK;
}

sheaf_status gguf_file_map(gguf_file *f) {
    if (f->map) return SHEAF_OK;
    if (f->fd < 0) {
        f->map = (void *)f->head; /* never written */
        return SHEAF_OK;
    }
    sheaf_status s = gguf_file_same_size(f);
    if (s) return s;
    void *p = mmap(NULL, (size_t)f->size, PROT_READ, MAP_SHARED, f->fd, 0);
    if (p == MAP_FAILED)
        return sheaf_fail(errno == ENOMEM ? SHEAF_E_NO_MEMORY : SHEAF_E_IO, "%s: mapping %llu bytes: %s", f->path,
                          (unsigned long long)f->size, strerror(errno));
    (void)madvise(p, (size_t)f->size, MADV_WILLNEED); /* large reads ahead, instead of one a page (case E08) */
    f->map = p;
    return SHEAF_OK;
}
