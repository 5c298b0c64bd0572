#include "base/mem.h"

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

/* Reads one number from a file of /sys or /proc; returns SIZE_MAX if absent or "max". */
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

size_t mem_total(void)
{
    size_t ram = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t v2 = read_number("/sys/fs/cgroup/memory.max");
    size_t v1 = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    if (v2 < ram)
        ram = v2;
    return v1 < ram ? v1 : ram;
}

size_t mem_available(void)
{
    char line[200];
    unsigned long long kib;
    size_t found = SIZE_MAX;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            found = (size_t)kib * 1024;
    if (f)
        fclose(f);
    return found;
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
