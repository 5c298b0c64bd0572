#include "base/mem.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *checked(void *p, size_t bytes)
{
    if (!p) {
        fprintf(stderr, "sluice: out of memory allocating %zu bytes\n", bytes);
        abort();
    }
    return p;
}

void *mem_alloc(size_t bytes)
{
    return checked(malloc(bytes ? bytes : 1), bytes);
}

void *mem_zalloc(size_t count, size_t size)
{
    return checked(calloc(count ? count : 1, size ? size : 1), size);
}

void *mem_realloc(void *p, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return checked(NULL, SIZE_MAX);
    return checked(realloc(p, bytes ? bytes : 1), bytes);
}

char *mem_strdup(const char *s)
{
    return s ? mem_strndup(s, strlen(s)) : NULL;
}

char *mem_strndup(const char *s, size_t n)
{
    char *copy = mem_alloc(n + 1);
    if (n)
        memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

void *mem_try_alloc(size_t count, size_t size)
{
    return calloc(count ? count : 1, size ? size : 1);
}

void *mem_map(size_t bytes)
{
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE); /* a wish: refused on kernels without it, and that is fine */
    return p;
}

void mem_unmap(void *p, size_t bytes)
{
    if (p)
        munmap(p, bytes ? bytes : 1);
}

/* The first number in a file of /sys or /proc; SIZE_MAX if there is none, or "max". */
static size_t read_number(const char *path)
{
    unsigned long long v;
    FILE *f = fopen(path, "r");
    if (!f)
        return SIZE_MAX;
    int n = fscanf(f, "%llu", &v);
    fclose(f);
    return n == 1 ? (size_t)v : SIZE_MAX;
}

/* The number after `key` in a file of lines "key number"; `missing` if there is none. */
static size_t read_key(const char *path, const char *key, size_t missing)
{
    char line[200];
    unsigned long long v;
    size_t found = missing, n = strlen(key);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0 && sscanf(line + n, " %llu", &v) == 1)
            found = (size_t)v;
    if (f)
        fclose(f);
    return found;
}

/* The two kinds of cgroup hierarchies: where they are mounted and what their files are called. */
struct cgroup_kind {
    const char *mount, *limit, *used, *active_file, *inactive_file; /* page cache, which is given back */
};
static const struct cgroup_kind cgroup_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "active_file ",
                                             "inactive_file "};
static const struct cgroup_kind cgroup_hybrid = {"/sys/fs/cgroup/unified", "memory.max", "memory.current",
                                                 "active_file ", "inactive_file "};
static const struct cgroup_kind cgroup_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                             "memory.usage_in_bytes", "total_active_file ",
                                             "total_inactive_file "};

/* Lowers *limit and *left to those of one group. */
static void cgroup_level(const char *dir, const struct cgroup_kind *kind, size_t *limit, size_t *left)
{
    char path[PATH_MAX + 64];
    const size_t size = sizeof path;
    snprintf(path, size, "%s/%s", dir, kind->limit);
    size_t max = read_number(path);
    if (max == SIZE_MAX)
        return;
    *limit = max < *limit ? max : *limit;
    snprintf(path, size, "%s/%s", dir, kind->used);
    size_t used = read_number(path), cache;
    if (used == SIZE_MAX)
        return;
    snprintf(path, size, "%s/memory.stat", dir);
    if (__builtin_add_overflow(read_key(path, kind->active_file, 0), read_key(path, kind->inactive_file, 0),
                               &cache) ||
        cache > used)
        cache = used;
    used -= cache;
    size_t here = used < max ? max - used : 0;
    *left = here < *left ? here : *left;
}

/* The group at `path` of a hierarchy and all that it lies in, up to the root: each may have a limit. Groups
 * that are not there, as inside a container that sees only a part of the tree, have none. */
static void cgroup_walk(const char *root, const struct cgroup_kind *kind, const char *path, size_t *limit,
                        size_t *left)
{
    char dir[PATH_MAX];
    int base = snprintf(dir, sizeof dir, "%s%s", root, kind->mount);
    int n = snprintf(dir, sizeof dir, "%s%s%s", root, kind->mount, path);
    if (base < 0 || n < base || n >= (int)sizeof dir - 1)
        return;
    for (;;) {
        while (n > base && dir[n - 1] == '/')
            dir[--n] = '\0';
        cgroup_level(dir, kind, limit, left);
        while (n > base && dir[n - 1] != '/')
            dir[--n] = '\0';
        if (n <= base)
            return;
    }
}

/* Whether a list "cpu,memory" has the word "memory". */
static bool lists_memory(const char *list, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t len = 0;
        while (at + len < n && list[at + len] != ',')
            len++;
        if (len == 6 && memcmp(list + at, "memory", 6) == 0)
            return true;
        at += len + 1;
    }
    return false;
}

void mem_cgroup(const char *root, size_t *limit, size_t *left)
{
    char path[PATH_MAX], line[PATH_MAX + 64];
    *limit = *left = SIZE_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) { /* hierarchy:controllers:path */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        group++;
        if (strncmp(line, "0::", 3) == 0) {
            cgroup_walk(root, &cgroup_v2, group, limit, left);
            cgroup_walk(root, &cgroup_hybrid, group, limit, left);
        } else if (lists_memory(controllers + 1, (size_t)(group - controllers - 2))) {
            cgroup_walk(root, &cgroup_v1, group, limit, left);
        }
    }
    if (f) {
        fclose(f);
        return;
    }
    cgroup_walk(root, &cgroup_v2, "", limit, left); /* no /proc: the tree's root at least */
    cgroup_walk(root, &cgroup_v1, "", limit, left);
}

size_t mem_total(void)
{
    size_t ram = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE), limit, left;
    mem_cgroup("", &limit, &left);
    return limit < ram ? limit : ram;
}

size_t mem_available(void)
{
    size_t limit, left, kib = read_key("/proc/meminfo", "MemAvailable:", SIZE_MAX);
    mem_cgroup("", &limit, &left);
    size_t system = kib == SIZE_MAX ? SIZE_MAX : kib * 1024;
    return left < system ? left : system;
}

size_t mem_resident(void)
{
    unsigned long long size, resident;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f)
        return 0;
    int n = fscanf(f, "%llu %llu", &size, &resident);
    fclose(f);
    return n == 2 ? (size_t)resident * (size_t)sysconf(_SC_PAGESIZE) : 0;
}
