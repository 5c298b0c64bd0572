#include "sched/offload_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"

#define TMP_NAME "writing.tmp"

enum { MAGIC, VERSION_KIND, MODEL, KEY = 4, SALT = 6, N_TOKENS = 8, BYTES, CHECKSUM, WORDS = 12 };
static const uint64_t version = 1;
static const char magic[8] = {'s', 'l', 'u', 'i', 'c', 'e', 'K', 'V'};

void offload_file_name(enum offload_kind kind, const uint64_t key[2], char name[OFFLOAD_NAME])
{
    snprintf(name, OFFLOAD_NAME, "%016llx%016llx.%s", (unsigned long long)key[0], (unsigned long long)key[1],
             kind == OFFLOAD_KV ? "kv" : "state");
}

int offload_file_parse_name(const char *name, enum offload_kind *kind, uint64_t key[2])
{
    unsigned long long a, b;
    char again[OFFLOAD_NAME];
    if (sscanf(name, "%16llx%16llx", &a, &b) != 2)
        return -1;
    key[0] = a;
    key[1] = b;
    for (int k = 0; k < OFFLOAD_KINDS; k++) {
        offload_file_name((enum offload_kind)k, key, again);
        if (strcmp(name, again) == 0) {
            *kind = (enum offload_kind)k;
            return 0;
        }
    }
    return -1;
}

size_t offload_file_size(const struct offload_file *f)
{
    return WORDS * sizeof(uint64_t) + f->n_tokens * sizeof *f->tokens + f->bytes;
}

/* All but the checksum. */
static void fill_header(const struct offload_file *f, uint64_t *h)
{
    memset(h, 0, WORDS * sizeof *h);
    memcpy(&h[MAGIC], magic, sizeof magic);
    h[VERSION_KIND] = version << 32 | (uint64_t)f->kind;
    memcpy(&h[MODEL], f->model, sizeof f->model);
    memcpy(&h[KEY], f->key, sizeof f->key);
    memcpy(&h[SALT], f->salt, sizeof f->salt);
    h[N_TOKENS] = f->n_tokens;
    h[BYTES] = f->bytes;
}

static void begin_checksum(struct hash *sum, const uint64_t *header)
{
    hash_init(sum);
    hash_add(sum, header, CHECKSUM * sizeof *header);
}

static int write_all(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n > 0) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? errno : ENOSPC;
        p += done;
        n -= (size_t)done;
    }
    return 0;
}

int offload_file_write(int dir, const struct offload_file *f, const void *data)
{
    uint64_t h[WORDS];
    struct hash sum;
    char name[OFFLOAD_NAME];
    fill_header(f, h);
    begin_checksum(&sum, h);
    hash_add(&sum, f->tokens, f->n_tokens * sizeof *f->tokens);
    hash_add(&sum, data, f->bytes);
    hash_end(&sum, &h[CHECKSUM]);
    offload_file_name(f->kind, f->key, name);
    unlinkat(dir, TMP_NAME, 0); /* what a killed process left */
    int fd = openat(dir, TMP_NAME, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return errno;
    int why = write_all(fd, h, sizeof h);
    if (!why)
        why = write_all(fd, f->tokens, f->n_tokens * sizeof *f->tokens);
    if (!why)
        why = write_all(fd, data, f->bytes);
    if (close(fd) && !why)
        why = errno;
    if (!why && renameat(dir, TMP_NAME, dir, name))
        why = errno;
    if (why)
        unlinkat(dir, TMP_NAME, 0);
    return why;
}

/* Exactly n bytes: a file that ends before is damaged. */
static enum offload_result read_all(int fd, void *data, size_t n)
{
    char *p = data;
    while (n > 0) {
        ssize_t got = read(fd, p, n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? OFFLOAD_FAILED : OFFLOAD_DAMAGED;
        p += got;
        n -= (size_t)got;
    }
    return OFFLOAD_OK;
}

/* Compares the tokens that come next in the file. They are all summed, equal or not. */
static enum offload_result read_tokens(int fd, const struct offload_file *want, struct hash *sum, bool *equal)
{
    int32_t piece[2048];
    size_t most = sizeof piece / sizeof *piece;
    for (size_t i = 0; i < want->n_tokens; i += most) {
        size_t n = want->n_tokens - i < most ? want->n_tokens - i : most;
        enum offload_result r = read_all(fd, piece, n * sizeof *piece);
        if (r != OFFLOAD_OK)
            return r;
        hash_add(sum, piece, n * sizeof *piece);
        if (memcmp(piece, want->tokens + i, n * sizeof *piece) != 0)
            *equal = false;
    }
    return OFFLOAD_OK;
}

static enum offload_result read_open(int fd, const struct offload_file *want, void *data)
{
    uint64_t h[WORDS], expected[WORDS], digest[2];
    struct stat st;
    struct hash sum;
    bool equal = true;
    enum offload_result r = read_all(fd, h, sizeof h);
    if (r != OFFLOAD_OK)
        return r;
    fill_header(want, expected);
    if (memcmp(h, expected, SALT * sizeof *h) != 0)
        return memcmp(&h[MODEL], &expected[MODEL], sizeof want->model) != 0 ||
                       h[VERSION_KIND] != expected[VERSION_KIND]
                   ? OFFLOAD_FOREIGN
                   : OFFLOAD_DAMAGED;
    if (memcmp(h, expected, CHECKSUM * sizeof *h) != 0)
        return OFFLOAD_OTHER;
    if (fstat(fd, &st))
        return OFFLOAD_FAILED;
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != offload_file_size(want))
        return OFFLOAD_DAMAGED;
    begin_checksum(&sum, h);
    r = read_tokens(fd, want, &sum, &equal);
    if (r == OFFLOAD_OK)
        r = read_all(fd, data, want->bytes);
    if (r != OFFLOAD_OK)
        return r;
    hash_add(&sum, data, want->bytes);
    hash_end(&sum, digest);
    if (memcmp(digest, &h[CHECKSUM], sizeof digest) != 0)
        return OFFLOAD_DAMAGED;
    return equal ? OFFLOAD_OK : OFFLOAD_OTHER;
}

enum offload_result offload_file_read(int dir, const struct offload_file *want, void *data)
{
    char name[OFFLOAD_NAME];
    offload_file_name(want->kind, want->key, name);
    /* a name may have become a link or a FIFO, and neither may be followed or waited for */
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? OFFLOAD_ABSENT : OFFLOAD_FAILED;
    enum offload_result r = read_open(fd, want, data);
    if (r == OFFLOAD_OK)
        futimens(fd, NULL); /* the age of files outlives the process: the oldest go first */
    close(fd);
    return r;
}
