#include "sched/offload_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#define DEFAULT_LIMIT ((uint64_t)16 << 30)
#define LEAST_ENTRIES 1024
#define MOST_ENTRIES  ((size_t)1 << 18)

/* One file. */
struct entry {
    uint64_t model, key[2];
    uint64_t size;
    enum offload_kind kind;
    int32_t chain;        /* next in its bucket, or in the list of free entries; -1 ends */
    int32_t older, newer; /* by last use; -1 ends */
};

struct offload_store {
    int root, dir; /* DIR and DIR/MODEL; dir is -1 where it is missing and cannot be made */
    int lock_fd;
    char *path;
    uint64_t model; /* of our files */

    pthread_mutex_t lock;  /* of all below */
    struct entry *entries; /* [n_entries], allocated once */
    size_t n_entries;
    int32_t *buckets; /* [n_buckets], a power of two */
    uint32_t n_buckets;
    int32_t unused, oldest, newest;
    struct offload_usage usage;
};

/* --- the list, under the lock -------------------------------------------------------------------- */

static int32_t *bucket_of(struct offload_store *s, enum offload_kind kind, const uint64_t key[2])
{
    return &s->buckets[(key[0] + (uint64_t)kind) & (s->n_buckets - 1)];
}

static int32_t find(struct offload_store *s, uint64_t model, enum offload_kind kind, const uint64_t key[2])
{
    int32_t i = *bucket_of(s, kind, key);
    while (i >= 0) {
        const struct entry *x = &s->entries[i];
        if (x->key[0] == key[0] && x->key[1] == key[1] && x->kind == kind && x->model == model)
            break;
        i = x->chain;
    }
    return i;
}

static void unlink_age(struct offload_store *s, int32_t i)
{
    struct entry *x = &s->entries[i];
    *(x->older >= 0 ? &s->entries[x->older].newer : &s->oldest) = x->newer;
    *(x->newer >= 0 ? &s->entries[x->newer].older : &s->newest) = x->older;
}

static void append_age(struct offload_store *s, int32_t i)
{
    struct entry *x = &s->entries[i];
    x->older = s->newest;
    x->newer = -1;
    *(s->newest >= 0 ? &s->entries[s->newest].newer : &s->oldest) = i;
    s->newest = i;
}

static void forget(struct offload_store *s, int32_t i)
{
    struct entry *x = &s->entries[i];
    int32_t *link = bucket_of(s, x->kind, x->key);
    while (*link != i)
        link = &s->entries[*link].chain;
    *link = x->chain;
    unlink_age(s, i);
    s->usage.bytes -= x->size;
    s->usage.files--;
    x->chain = s->unused;
    s->unused = i;
}

/* Adds a file as the youngest; there must be an unused entry. */
static void add(struct offload_store *s, const struct entry *file)
{
    int32_t i = s->unused, *bucket = bucket_of(s, file->kind, file->key);
    s->unused = s->entries[i].chain;
    s->entries[i] = *file;
    s->entries[i].chain = *bucket;
    *bucket = i;
    append_age(s, i);
    s->usage.bytes += file->size;
    s->usage.files++;
}

/* --- removing files ------------------------------------------------------------------------------ */

static void remove_file(struct offload_store *s, const struct entry *x)
{
    char name[OFFLOAD_NAME], path[OFFLOAD_NAME + 24];
    offload_file_name(x->kind, x->key, name);
    snprintf(path, sizeof path, "%016" PRIx64 "/%s", x->model, name);
    unlinkat(s->root, path, 0);
}

/* Gives up the oldest files until `bytes` more and one entry more have room. */
static void make_room(struct offload_store *s, uint64_t bytes)
{
    for (;;) {
        struct entry victim;
        pthread_mutex_lock(&s->lock);
        bool fits = s->unused >= 0 && s->usage.bytes + bytes <= s->usage.limit;
        if (!fits && s->oldest >= 0) {
            victim = s->entries[s->oldest];
            forget(s, s->oldest);
            s->usage.evicted++;
        } else {
            fits = true;
        }
        pthread_mutex_unlock(&s->lock);
        if (fits)
            return;
        remove_file(s, &victim);
    }
}

/* --- opening ------------------------------------------------------------------------------------- */

struct found {
    struct entry entry;
    struct timespec used;
};

static int by_age(const void *a, const void *b)
{
    const struct timespec *x = &((const struct found *)a)->used, *y = &((const struct found *)b)->used;
    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

struct listing {
    struct found *files; /* [n], room for cap */
    size_t n, cap;
};

/* The files of one model's directory; names that are not ours are left alone. */
static void list_model(struct offload_store *s, const char *name, uint64_t model, struct listing *l)
{
    int fd = openat(s->root, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *x; (x = readdir(d));) {
        struct found f = {.entry = {.model = model}};
        struct stat st;
        if (offload_file_parse_name(x->d_name, &f.entry.kind, f.entry.key) ||
            fstatat(fd, x->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
            continue;
        f.entry.size = (uint64_t)st.st_size;
        f.used = st.st_mtim;
        if (l->n == l->cap) {
            l->cap = l->cap ? 2 * l->cap : 256;
            l->files = mem_realloc(l->files, l->cap, sizeof *l->files);
        }
        l->files[l->n++] = f;
    }
    closedir(d);
}

static void list_all(struct offload_store *s, struct listing *l)
{
    int fd = dup(s->root);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *x; (x = readdir(d));) {
        unsigned long long model;
        char again[20];
        if (sscanf(x->d_name, "%16llx", &model) != 1)
            continue;
        snprintf(again, sizeof again, "%016llx", model);
        if (strcmp(again, x->d_name) == 0)
            list_model(s, x->d_name, model, l);
    }
    closedir(d);
}

/* Half of what the disk has beside our files, if nobody said more: the same after each restart. */
static uint64_t default_limit(int root, const struct listing *l)
{
    struct statvfs v;
    uint64_t ours = 0;
    if (fstatvfs(root, &v))
        return DEFAULT_LIMIT;
    for (size_t i = 0; i < l->n; i++)
        ours += l->files[i].entry.size;
    uint64_t half = ((uint64_t)v.f_bavail * v.f_frsize + ours) / 2;
    return half < DEFAULT_LIMIT ? half : DEFAULT_LIMIT;
}

static void make_list(struct offload_store *s, size_t typical)
{
    s->n_entries = (size_t)(s->usage.limit / (typical ? typical : 1)) + LEAST_ENTRIES;
    if (s->n_entries > MOST_ENTRIES)
        s->n_entries = MOST_ENTRIES;
    s->entries = mem_zalloc(s->n_entries, sizeof *s->entries);
    for (size_t i = 0; i < s->n_entries; i++)
        s->entries[i].chain = i + 1 < s->n_entries ? (int32_t)i + 1 : -1;
    s->oldest = s->newest = -1;
    for (s->n_buckets = 1024; s->n_buckets < s->n_entries;)
        s->n_buckets *= 2;
    s->buckets = mem_alloc(s->n_buckets * sizeof *s->buckets);
    memset(s->buckets, 0xff, s->n_buckets * sizeof *s->buckets); /* -1 */
}

/* Takes in what is there, oldest first; what is too much is removed. */
static void read_list(struct offload_store *s, uint64_t limit, size_t typical)
{
    struct listing l = {0};
    list_all(s, &l);
    s->usage.limit = limit ? limit : default_limit(s->root, &l);
    make_list(s, typical);
    if (l.n)
        qsort(l.files, l.n, sizeof *l.files, by_age);
    for (size_t i = 0; i < l.n; i++) {
        make_room(s, l.files[i].entry.size);
        if (l.files[i].entry.size > s->usage.limit)
            remove_file(s, &l.files[i].entry);
        else
            add(s, &l.files[i].entry);
    }
    free(l.files);
}

static int open_directories(struct offload_store *s, const char *path, struct err *e)
{
    char name[20];
    if (mkdir(path, 0700) && errno != EEXIST)
        return err_set(e, ERR_IO, "the offload directory %s cannot be made: %s", path, strerror(errno));
    s->root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->root < 0)
        return err_set(e, ERR_IO, "the offload directory %s cannot be opened: %s", path, strerror(errno));
    s->lock_fd = openat(s->root, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->lock_fd >= 0 && flock(s->lock_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return err_set(e, ERR_BUSY, "the offload directory %s is used by another server: give each its own",
                       path);
    snprintf(name, sizeof name, "%016" PRIx64, s->model);
    bool made = mkdirat(s->root, name, 0700) == 0 || errno == EEXIST;
    int why = errno;
    s->dir = openat(s->root, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (!made || s->dir < 0 || s->lock_fd < 0)
        log_warn("the offload directory %s cannot be written (%s): what it holds is used, nothing is added",
                 path, strerror(made ? errno : why));
    return 0;
}

struct offload_store *offload_store_open(const char *dir, const uint64_t model[2], uint64_t limit,
                                         size_t typical, struct err *e)
{
    struct offload_store *s = mem_zalloc(1, sizeof *s);
    s->root = s->dir = s->lock_fd = -1;
    s->model = model[0];
    s->path = mem_strdup(dir);
    pthread_mutex_init(&s->lock, NULL);
    if (open_directories(s, dir, e)) {
        offload_store_close(s);
        return NULL;
    }
    read_list(s, limit, typical);
    return s;
}

void offload_store_close(struct offload_store *s)
{
    if (!s)
        return;
    int fds[] = {s->dir, s->lock_fd, s->root};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    pthread_mutex_destroy(&s->lock);
    free(s->entries);
    free(s->buckets);
    free(s->path);
    free(s);
}

/* --- use ----------------------------------------------------------------------------------------- */

bool offload_store_has(struct offload_store *s, enum offload_kind kind, const uint64_t key[2])
{
    pthread_mutex_lock(&s->lock);
    int32_t i = find(s, s->model, kind, key);
    if (i >= 0) {
        unlink_age(s, i);
        append_age(s, i);
    }
    pthread_mutex_unlock(&s->lock);
    return i >= 0;
}

void offload_store_usage(struct offload_store *s, struct offload_usage *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->usage;
    pthread_mutex_unlock(&s->lock);
}

int offload_store_put(struct offload_store *s, const struct offload_file *f, const void *data)
{
    uint64_t size = offload_file_size(f);
    if (s->dir < 0)
        return EROFS;
    if (size > s->usage.limit)
        return EFBIG;
    make_room(s, size);
    int why = offload_file_write(s->dir, f, data);
    if (why)
        return why;
    pthread_mutex_lock(&s->lock);
    int32_t i = find(s, s->model, f->kind, f->key);
    if (i >= 0) /* the same file again */
        forget(s, i);
    add(s, &(struct entry){.model = s->model, .key = {f->key[0], f->key[1]}, .size = size, .kind = f->kind});
    pthread_mutex_unlock(&s->lock);
    return 0;
}

enum offload_result offload_store_get(struct offload_store *s, const struct offload_file *want, void *data)
{
    enum offload_result r = s->dir < 0 ? OFFLOAD_ABSENT : offload_file_read(s->dir, want, data);
    if (r == OFFLOAD_OK)
        return r;
    pthread_mutex_lock(&s->lock);
    int32_t i = find(s, s->model, want->kind, want->key);
    if (i >= 0)
        forget(s, i);
    pthread_mutex_unlock(&s->lock);
    if (i >= 0 && r != OFFLOAD_ABSENT) {
        const struct entry x = {.model = s->model, .key = {want->key[0], want->key[1]}, .kind = want->kind};
        remove_file(s, &x);
    }
    return r;
}
