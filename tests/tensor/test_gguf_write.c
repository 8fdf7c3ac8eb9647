/* Writing GGUF files: every value type and shape comes back, the layout keeps its rules, and a file is there whole
 * or not at all. */
#include "tensor/gguf_output.h"
#include "tensor/gguf_write.h"
#include "tests/support/gguf_build.h"
#include "tests/support/support.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static sheaf_str str(const char *s) { return (sheaf_str){s, strlen(s)}; }

static char *in_folder(const char *folder, const char *name) {
    static char path[4][600];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static int files_in(const char *folder) {
    int n = 0;
    DIR *d = opendir(folder);
    cr_assert(d != NULL);
    for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(d);
    return n;
}

static const sheaf_gguf_value ints[3] = {{.i = -2}, {.i = 0}, {.i = 127}};

/* One key of every scalar type and one array of each. */
static void put_everything(sheaf_gguf_writer *w) {
    char key[16];
    for (int t = 0; t <= SHEAF_GGUF_F64; t++) {
        sheaf_gguf_value v = {.i = -3}, list[3];
        if (t == SHEAF_GGUF_ARRAY) continue;
        memcpy(list, ints, sizeof list);
        if (t == SHEAF_GGUF_STRING) {
            v.str = (sheaf_str){"a\0b", 3};
            for (int i = 0; i < 3; i++) list[i].str = str(i == 1 ? "" : "text");
        } else if (t == SHEAF_GGUF_F32 || t == SHEAF_GGUF_F64) {
            v.f = -0.375;
            for (int i = 0; i < 3; i++) list[i].f = 0.5 * i;
        } else if (t == SHEAF_GGUF_BOOL) {
            v.b = true;
            for (int i = 0; i < 3; i++) list[i].b = i == 1;
        }
        snprintf(key, sizeof key, "one.%d", t);
        expect_ok(sheaf_gguf_put(w, str(key), (sheaf_gguf_type)t, &v));
        snprintf(key, sizeof key, "list.%d", t);
        expect_ok(sheaf_gguf_put_array(w, str(key), (sheaf_gguf_type)t, list, 3));
    }
    expect_ok(sheaf_gguf_put_array(w, str("none"), SHEAF_GGUF_STRING, NULL, 0));
}

static void expect_value(sheaf_gguf_type t, const sheaf_gguf_value *v, double number, const char *text, size_t n) {
    switch (t) {
    case SHEAF_GGUF_STRING:
        cr_assert(v->str.n == n && !memcmp(v->str.s, text, n), "a string of %zu bytes", v->str.n);
        break;
    case SHEAF_GGUF_F32:
    case SHEAF_GGUF_F64: cr_assert(v->f == number, "%g, expected %g", v->f, number); break;
    case SHEAF_GGUF_BOOL: expect_int(v->b, number != 0); break;
    default: cr_assert((double)v->i == number, "%lld, expected %g", (long long)v->i, number); break;
    }
}

/* What an unsigned type of that many bytes makes of -3 or -2; signed ones keep it. */
static double as_type(sheaf_gguf_type t, int v) {
    if (v >= 0) return v;
    switch (t) {
    case SHEAF_GGUF_U8: return 256.0 + v;
    case SHEAF_GGUF_U16: return 65536.0 + v;
    case SHEAF_GGUF_U32: return 4294967296.0 + v;
    default: return v; /* of 64 bits the test reads the signed member */
    }
}

static void expect_everything(const sheaf_gguf *g) {
    for (int64_t i = 0; i < sheaf_gguf_n_keys(g); i++) {
        sheaf_str key = sheaf_gguf_key(g, i);
        sheaf_gguf_type t;
        sheaf_gguf_value v = {0};
        int want = -1;
        if (key.n > 4 && !memcmp(key.s, "one.", 4)) {
            expect_ok(sheaf_gguf_scalar(g, i, &t, &v));
            expect_int(t, atoi(key.s + 4));
            expect_value(t, &v, t == SHEAF_GGUF_F32 || t == SHEAF_GGUF_F64 ? -0.375 : as_type(t, -3), "a\0b", 3);
        } else if (key.n > 5 && !memcmp(key.s, "list.", 5)) {
            expect_int(sheaf_gguf_array_length(g, i), 3);
            for (int j = 0; j < 3; j++) {
                expect_ok(sheaf_gguf_element(g, i, j, &t, &v));
                expect_int(t, atoi(key.s + 5));
                want = t == SHEAF_GGUF_BOOL ? j == 1 : (int)ints[j].i;
                expect_value(t, &v, t == SHEAF_GGUF_F32 || t == SHEAF_GGUF_F64 ? 0.5 * j : as_type(t, want),
                             j == 1 ? "" : "text", j == 1 ? 0 : 4);
            }
        }
    }
    expect_int(sheaf_gguf_array_length(g, sheaf_gguf_find(g, "none")), 0);
}

static const struct {
    const char *name;
    sheaf_type type;
    int n_dims;
    int64_t ne[4];
} shapes[] = {{"a.weight", SHEAF_F32, 2, {3, 5}}, {"b", SHEAF_I8, 1, {1}},        {"c", SHEAF_Q4_K, 3, {512, 2, 3}},
              {"d", SHEAF_F16, 4, {2, 3, 4, 5}},  {"e", SHEAF_MXFP4, 2, {32, 7}}, {"last", SHEAF_I64, 1, {9}}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static uint8_t content(int tensor, uint64_t at) { return (uint8_t)(at * 7 + (uint64_t)tensor * 31 + at / 251); }

static void add_tensors(sheaf_gguf_writer *w) {
    for (int i = 0; i < N_SHAPES; i++)
        expect_ok(sheaf_gguf_add(w, str(shapes[i].name), shapes[i].type, shapes[i].n_dims, shapes[i].ne));
}

static uint64_t bytes_of(int i) {
    uint64_t n = sheaf_row_bytes(shapes[i].type, shapes[i].ne[0]);
    for (int d = 1; d < shapes[i].n_dims; d++) n *= (uint64_t)shapes[i].ne[d];
    return n;
}

/* Last tensor first, each in two pieces, the later one first. */
static sheaf_status write_tensors(sheaf_gguf_writer *w) {
    sheaf_status s = SHEAF_OK;
    for (int i = N_SHAPES - 1; i >= 0 && !s; i--) {
        uint8_t p[4096];
        uint64_t n = bytes_of(i), half = n / 2;
        for (uint64_t k = 0; k < n; k++) p[k] = content(i, k);
        s = sheaf_gguf_write(w, i, half, p + half, n - half);
        if (!s) s = sheaf_gguf_write(w, i, 0, p, half);
    }
    return s;
}

static void expect_tensors(sheaf_gguf *g) {
    uint64_t end = 0;
    expect_int(sheaf_gguf_n_tensors(g), N_SHAPES);
    expect_ok(sheaf_gguf_map(g));
    for (int i = 0; i < N_SHAPES; i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(g, i);
        expect_int(t->type, shapes[i].type);
        expect_int(t->n_dims, shapes[i].n_dims);
        for (int d = 0; d < t->n_dims; d++) expect_int(t->ne[d], shapes[i].ne[d]);
        expect_int(t->bytes, bytes_of(i));
        expect_int(t->offset % sheaf_gguf_alignment(g), 0);
        cr_assert(t->offset >= end, "%s begins inside the one before", shapes[i].name);
        end = t->offset + t->bytes;
        const uint8_t *p = sheaf_gguf_mapped(g, t);
        for (uint64_t k = 0; k < t->bytes; k++)
            cr_assert(p[k] == content(i, k), "%s: byte %llu is %d", shapes[i].name, (unsigned long long)k, p[k]);
    }
    expect_int(sheaf_gguf_file_bytes(g, 0) % sheaf_gguf_alignment(g), 0);
}

Test(gguf_write, every_value_type_and_shape_comes_back, .timeout = 60) {
    static const uint32_t alignments[] = {0, 8, 32, 4096};
    char *folder = make_folder();
    for (int a = 0; a < 4; a++) {
        sheaf_gguf_writer *w;
        sheaf_gguf *g;
        char *path = in_folder(folder, "x.gguf");
        expect_ok(sheaf_gguf_writer_new(&w));
        put_everything(w);
        if (alignments[a]) expect_ok(sheaf_gguf_put_u32(w, "general.alignment", alignments[a]));
        add_tensors(w);
        expect_ok(sheaf_gguf_create(w, path));
        expect_ok(write_tensors(w));
        expect_ok(sheaf_gguf_commit(w));
        sheaf_gguf_writer_free(w);
        expect_ok(sheaf_gguf_open(path, &g));
        expect_int(sheaf_gguf_version(g), 3);
        expect_int(sheaf_gguf_alignment(g), alignments[a] ? alignments[a] : 32);
        expect_everything(g);
        expect_tensors(g);
        sheaf_gguf_close(g);
        expect_int(files_in(folder), 1);
    }
    remove_folder(folder);
}

Test(gguf_write, keys_are_replaced_dropped_and_copied, .timeout = 60) {
    static const uint8_t nested[] = {9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, /* one array: */
                                     0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 5, 6};
    char *folder = make_folder(), *path = in_folder(folder, "x.gguf");
    gguf_build *b = gguf_build_new();
    gguf_build_str(b, "first", "1");
    gguf_build_strs(b, "words", (const char *const[]){"x", "", "yz"}, 3);
    gguf_build_raw_key(b, "nested", 6, SHEAF_GGUF_ARRAY, nested, sizeof nested);
    gguf_build_u32(b, "last", 7);
    size_t n;
    const uint8_t *bytes = gguf_build_bytes(b, &n);
    sheaf_gguf *g;
    sheaf_gguf_writer *w;
    expect_ok(sheaf_gguf_open_memory(bytes, n, &g));
    expect_ok(sheaf_gguf_writer_new(&w));
    for (int64_t i = 0; i < sheaf_gguf_n_keys(g); i++) expect_ok(sheaf_gguf_put_from(w, g, i));
    expect_ok(sheaf_gguf_create(w, path));
    expect_ok(sheaf_gguf_commit(w));
    sheaf_gguf_writer_free(w);
    size_t m;
    char *whole = read_file(path, &m);
    cr_assert(m >= n - 32 && !memcmp(whole, bytes, 24) && !memcmp(whole, bytes, m < n ? m : n), "the copy differs");
    free(whole);

    expect_ok(sheaf_gguf_writer_new(&w));
    for (int64_t i = 0; i < sheaf_gguf_n_keys(g); i++) expect_ok(sheaf_gguf_put_from(w, g, i));
    expect_status(sheaf_gguf_put_from(w, g, 4), SHEAF_E_RANGE);
    expect_ok(sheaf_gguf_put_str(w, "first", "a longer value"));
    sheaf_gguf_drop(w, "words");
    sheaf_gguf_drop(w, "nosuch");
    expect_ok(sheaf_gguf_create(w, path));
    expect_ok(sheaf_gguf_commit(w));
    sheaf_gguf_writer_free(w);
    sheaf_gguf_close(g);
    expect_ok(sheaf_gguf_open(path, &g));
    sheaf_str v;
    expect_int(sheaf_gguf_n_keys(g), 3);
    expect_int(sheaf_gguf_find(g, "first"), 0);
    expect_ok(sheaf_gguf_get_str(g, "first", &v));
    cr_assert(v.n == 14 && !memcmp(v.s, "a longer value", 14));
    expect_int(sheaf_gguf_find(g, "words"), -1);
    sheaf_gguf_close(g);
    gguf_build_free(b);
    remove_folder(folder);
}

Test(gguf_write, what_no_file_can_hold_is_refused, .timeout = 60) {
    sheaf_gguf_writer *w;
    char *folder = make_folder(), long_name[SHEAF_MAX_NAME + 1] = {0};
    memset(long_name, 'n', SHEAF_MAX_NAME);
    expect_ok(sheaf_gguf_writer_new(&w));
    sheaf_gguf_value v = {0};
    expect_status(sheaf_gguf_put(w, str("k"), SHEAF_GGUF_ARRAY, &v), SHEAF_E_ARGUMENT);
    expect_status(sheaf_gguf_put(w, str("k"), (sheaf_gguf_type)13, &v), SHEAF_E_ARGUMENT);
    expect_status(sheaf_gguf_put_array(w, str("k"), SHEAF_GGUF_ARRAY, &v, 1), SHEAF_E_ARGUMENT);
    expect_status(sheaf_gguf_put_array(w, str("k"), SHEAF_GGUF_U8, &v, -1), SHEAF_E_ARGUMENT);
    int64_t wrong[][4] = {{0}, {-1}, {33}, {INT64_MAX}};
    for (int i = 0; i < 4; i++) expect_status(sheaf_gguf_add(w, str("t"), SHEAF_Q4_0, 1, wrong[i]), SHEAF_E_ARGUMENT);
    expect_status(sheaf_gguf_add(w, str("t"), SHEAF_F32, 2, (int64_t[]){INT64_MAX / 8, 9}), SHEAF_E_ARGUMENT);
    expect_status(sheaf_gguf_add(w, str("t"), (sheaf_type)4, 1, (int64_t[]){32}), SHEAF_E_ARGUMENT);
    expect_status(sheaf_gguf_add(w, str("t"), SHEAF_F32, 5, (int64_t[]){1}), SHEAF_E_ARGUMENT);
    expect_status(sheaf_gguf_add(w, str(long_name), SHEAF_F32, 1, (int64_t[]){1}), SHEAF_E_ARGUMENT);
    expect_ok(sheaf_gguf_put_u32(w, "general.alignment", 24));
    expect_status(sheaf_gguf_create(w, in_folder(folder, "x")), SHEAF_E_ARGUMENT);
    expect_error("general.alignment is no power of two");
    v.i = INT64_C(1) << 32;
    expect_ok(sheaf_gguf_put(w, str("general.alignment"), SHEAF_GGUF_U64, &v));
    expect_status(sheaf_gguf_create(w, in_folder(folder, "x")), SHEAF_E_ARGUMENT);
    expect_error("general.alignment is no power of two");
    expect_ok(sheaf_gguf_put_u32(w, "general.alignment", 16));
    expect_ok(sheaf_gguf_add(w, str("t"), SHEAF_F32, 1, (int64_t[]){4}));
    expect_status(sheaf_gguf_write(w, 0, 0, long_name, 4), SHEAF_E_ARGUMENT); /* not created */
    expect_status(sheaf_gguf_commit(w), SHEAF_E_ARGUMENT);
    expect_ok(sheaf_gguf_create(w, in_folder(folder, "x")));
    expect_status(sheaf_gguf_put_u32(w, "late", 1), SHEAF_E_ARGUMENT);
    expect_status(sheaf_gguf_add(w, str("late"), SHEAF_F32, 1, (int64_t[]){4}), SHEAF_E_ARGUMENT);
    expect_status(sheaf_gguf_write(w, 0, 8, long_name, 9), SHEAF_E_ARGUMENT);
    expect_status(sheaf_gguf_write(w, 1, 0, long_name, 1), SHEAF_E_ARGUMENT);
    expect_status(sheaf_gguf_commit(w), SHEAF_E_ARGUMENT); /* no data yet */
    sheaf_gguf_writer_free(w);
    sheaf_gguf_writer_free(NULL);
    expect_int(files_in(folder), 0);
    remove_folder(folder);
}

/* Creates `path` with the test's tensors; the writer is freed whatever comes. */
static sheaf_status write_to(const char *path, bool commit) {
    sheaf_gguf_writer *w = NULL;
    sheaf_status s = sheaf_gguf_writer_new(&w);
    if (!s) s = sheaf_gguf_put_str(w, "general.architecture", "none");
    for (int i = 0; i < N_SHAPES && !s; i++)
        s = sheaf_gguf_add(w, str(shapes[i].name), shapes[i].type, shapes[i].n_dims, shapes[i].ne);
    if (!s) s = sheaf_gguf_create(w, path);
    if (!s) s = write_tensors(w);
    if (!s && commit) s = sheaf_gguf_commit(w);
    sheaf_gguf_writer_free(w);
    return s;
}

Test(gguf_write, the_target_stays_as_it_is_until_the_end, .timeout = 60) {
    char *folder = make_folder(), *path = in_folder(folder, "x.gguf"), *link = in_folder(folder, "link.gguf");
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs("old", f) >= 0 && fclose(f) == 0);
    expect_ok(write_to(path, false));
    size_t n;
    char *text = read_file(path, &n);
    expect_text(text, "old");
    free(text);
    expect_int(files_in(folder), 1);
    cr_assert(symlink("x.gguf", link) == 0);
    expect_ok(write_to(link, true));
    struct stat st;
    cr_assert(lstat(link, &st) == 0 && S_ISLNK(st.st_mode), "the link is gone");
    sheaf_gguf *g;
    expect_ok(sheaf_gguf_open(path, &g));
    expect_tensors(g);
    sheaf_gguf_close(g);
    expect_int(files_in(folder), 2);
    remove_folder(folder);
}

Test(gguf_write, places_that_take_no_file_are_named, .timeout = 60) {
    char *folder = make_folder(), *fifo = in_folder(folder, "fifo"), *nowhere = in_folder(folder, "nowhere");
    cr_assert(mkfifo(fifo, 0600) == 0 && symlink("nosuch", nowhere) == 0);
    const char *const paths[] = {folder, fifo, nowhere, "/dev/null", "/nosuch/x.gguf", ""};
    for (int i = 0; i < 6; i++) {
        expect_status(write_to(paths[i], true), SHEAF_E_IO);
        if (*paths[i]) expect_error(paths[i]);
    }
    expect_int(files_in(folder), 2);
    remove_folder(folder);
}

Test(gguf_write, a_full_disk_is_said_and_leaves_nothing, .timeout = 60) {
    char *folder = make_folder();
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit small = {2000, RLIM_INFINITY};
    cr_assert(setrlimit(RLIMIT_FSIZE, &small) == 0);
    sheaf_status s = write_to(in_folder(folder, "x.gguf"), true);
    small.rlim_cur = RLIM_INFINITY;
    cr_assert(setrlimit(RLIMIT_FSIZE, &small) == 0);
    expect_int(s, SHEAF_E_NO_SPACE);
    expect_int(files_in(folder), 0);
    remove_folder(folder);
}

static void limit_files(rlim_t bytes) {
    struct rlimit limit = {bytes, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* A write that the system cuts short goes on behind what was taken, and fails there. */
Test(gguf_write, a_short_write_is_no_whole_one, .timeout = 60) {
    static const char bytes[5000];
    char *folder = make_folder();
    gguf_output o;
    expect_ok(gguf_output_create(&o, in_folder(folder, "x"), 0));
    limit_files(2000);
    sheaf_status s = gguf_output_write(&o, 0, bytes, sizeof bytes);
    limit_files(RLIM_INFINITY);
    expect_int(s, SHEAF_E_NO_SPACE);
    gguf_output_abandon(&o);
    expect_int(files_in(folder), 0);
    remove_folder(folder);
}

/* What docs/quantize.md promises: a full disk is found before the first byte of data is made. */
Test(gguf_write, space_is_reserved_before_anything_is_written, .timeout = 60) {
    enum { BYTES = 1 << 20 };
    char *folder = make_folder();
    gguf_output o;
    limit_files(2000);
    sheaf_status s = gguf_output_create(&o, in_folder(folder, "x"), BYTES);
    limit_files(RLIM_INFINITY);
    expect_int(s, SHEAF_E_NO_SPACE);
    expect_int(files_in(folder), 0);
    struct stat st;
    int fd = open(in_folder(folder, "probe"), O_RDWR | O_CREAT, 0600);
    bool can = fd >= 0 && fallocate(fd, 0, 0, BYTES) == 0;
    close(fd);
    expect_ok(gguf_output_create(&o, in_folder(folder, "x"), BYTES));
    cr_assert(fstat(o.fd, &st) == 0);
    expect_int(st.st_size, BYTES);
    if (can) cr_assert_geq((int64_t)st.st_blocks * 512, BYTES, "%lld blocks", (long long)st.st_blocks);
    gguf_output_abandon(&o);
    remove_folder(folder);
}

static sheaf_status write_in(void *folder) { return write_to(in_folder(folder, "x.gguf"), true); }

Test(gguf_write, every_failed_allocation_is_a_status, .timeout = 120) {
    char *folder = make_folder();
    fail_each_allocation(write_in, folder);
    expect_int(files_in(folder), 1);
    remove_folder(folder);
}
