/* See gguf_output.h.
 *
 *   create: <folder>/.sheaf-<pid>-<n>   space reserved, so that a full disk is found before any work
 *   write:  at any offset, any thread
 *   commit: to the disk, then renamed over the target
 *
 * A signal that ends the process between create and commit leaves the temporary file; callers that can be
 * interrupted ask between writes and abandon. */
#include "tensor/gguf_output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sheaf_status failed(const char *path, int code) {
    bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
    sheaf_status s = full                                                 ? SHEAF_E_NO_SPACE
                     : code == EMFILE || code == ENFILE || code == ENOMEM ? SHEAF_E_NO_MEMORY
                                                                          : SHEAF_E_IO;
    return sheaf_fail(s, "writing: %s: %s", path, strerror(code));
}

/* Where the file shall be: `path`, or what it is a link to. Refuses what a file cannot take the place of. */
static sheaf_status resolve(const char *path, char **out) {
    char whole[PATH_MAX];
    struct stat st;
    const char *target = path;
    if (lstat(path, &st) == 0) {
        if (S_ISLNK(st.st_mode)) {
            if (!realpath(path, whole) || stat(whole, &st) != 0) return failed(path, errno);
            target = whole;
        }
        if (!S_ISREG(st.st_mode))
            return sheaf_fail(SHEAF_E_IO, "writing: %s: %s is there, not a file", path,
                              S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    } else if (errno != ENOENT) {
        return failed(path, errno);
    }
    *out = sheaf_strdup(target);
    return *out ? SHEAF_OK : sheaf_fail(SHEAF_E_NO_MEMORY, "writing: %s: no memory for its name", path);
}

/* The first free name in the target's folder; opened. */
static sheaf_status make_temporary(gguf_output *o) {
    const char *slash = strrchr(o->target, '/');
    int folder = slash ? (int)(slash - o->target) + 1 : 0;
    size_t size = (size_t)folder + 48;
    char *name = sheaf_malloc(size);
    if (!name) return sheaf_fail(SHEAF_E_NO_MEMORY, "writing: %s: no memory for a name", o->target);
    for (int i = 0; i < 1000 && o->fd < 0; i++) {
        snprintf(name, size, "%.*s.sheaf-%ld-%d", folder, o->target, (long)getpid(), i);
        o->fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd < 0 && errno != EEXIST) break;
    }
    if (o->fd < 0) {
        int code = errno;
        sheaf_free(name);
        return failed(o->target, code);
    }
    o->temporary = name;
    return SHEAF_OK;
}

/* Full length at once. Where space cannot be reserved (not every file system can) a full disk shows while writing. */
static sheaf_status reserve(const gguf_output *o) {
    if (o->size == 0) return SHEAF_OK;
    if (fallocate(o->fd, 0, 0, (off_t)o->size) == 0) return SHEAF_OK;
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL && errno != EINTR) {
        int code = errno;
        sheaf_status s = failed(o->target, code);
        return s == SHEAF_E_NO_SPACE ? sheaf_fail(s, "writing: %s: no room for %llu bytes: %s", o->target,
                                                  (unsigned long long)o->size, strerror(code))
                                     : s;
    }
    return ftruncate(o->fd, (off_t)o->size) == 0 ? SHEAF_OK : failed(o->target, errno);
}

sheaf_status gguf_output_create(gguf_output *o, const char *path, uint64_t size) {
    *o = (gguf_output){.fd = -1, .size = size};
    sheaf_status s = resolve(path, &o->target);
    if (!s) s = make_temporary(o);
    if (!s) s = reserve(o);
    if (s) gguf_output_abandon(o);
    return s;
}

sheaf_status gguf_output_write(const gguf_output *o, uint64_t at, const void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        size_t piece = n - done < (1u << 30) ? n - done : (size_t)1 << 30;
        ssize_t w = pwrite(o->fd, (const uint8_t *)bytes + done, piece, (off_t)(at + done));
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return failed(o->target, w ? errno : ENOSPC);
        done += (size_t)w;
    }
    return SHEAF_OK;
}

sheaf_status gguf_output_commit(gguf_output *o) {
    if (fsync(o->fd) != 0 && errno != EINVAL && errno != EROFS) return failed(o->target, errno);
    int fd = o->fd;
    o->fd = -1;
    if (close(fd) != 0) return failed(o->target, errno);
    if (rename(o->temporary, o->target) != 0) return failed(o->target, errno);
    sheaf_free(o->temporary);
    o->temporary = NULL;
    gguf_output_abandon(o); /* only names are left */
    return SHEAF_OK;
}

void gguf_output_abandon(gguf_output *o) {
    if (o->fd >= 0) close(o->fd);
    if (o->temporary) unlink(o->temporary);
    sheaf_free(o->temporary);
    sheaf_free(o->target);
    *o = (gguf_output){.fd = -1, .size = o->size};
}
