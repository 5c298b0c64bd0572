/* Counts what our code allocates. The linker leads every call of malloc, calloc, realloc and mmap through
 * these (CMakeLists.txt names the test programs). Include it in one file of a test program. */
#ifndef SLUICE_TESTS_ALLOCATIONS_H
#define SLUICE_TESTS_ALLOCATIONS_H

#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

static _Atomic int allocations;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset);

void *__wrap_malloc(size_t n)
{
    allocations++;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    allocations++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    allocations++;
    return __real_realloc(p, n);
}

void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    allocations++;
    return __real_mmap(at, n, protection, flags, fd, offset);
}

#endif
