/* Opening and mapping one file, with an error for each way in which it can be the wrong thing. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "file/internal.h"

/* A clone made without Git LFS holds small text files in place of the large ones. */
static bool is_lfs_pointer(const uint8_t *data, size_t size)
{
    static const char head[] = "version https://git-lfs";
    return size >= sizeof head - 1 && size < 1024 && memcmp(data, head, sizeof head - 1) == 0;
}

int mapping_open(struct mapping *m, const char *path, struct err *e)
{
    int result = -1;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not make us wait for its writer */
    if (fd < 0)
        return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: cannot open it: %s", path,
                       strerror(errno));
    if (fstat(fd, &st) != 0) {
        err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
        goto done;
    }
    if (!S_ISREG(st.st_mode)) {
        err_set(e, ERR_INVALID, "%s: is not a regular file", path);
        goto done;
    }
    if (st.st_size == 0) {
        err_set(e, ERR_INVALID, "%s: the file is empty; if it was downloaded, fetch it again", path);
        goto done;
    }
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        err_set(e, ERR_IO, "%s: cannot map its %lld bytes: %s", path, (long long)st.st_size, strerror(errno));
        goto done;
    }
    if (is_lfs_pointer(data, (size_t)st.st_size)) {
        munmap(data, (size_t)st.st_size);
        err_set(e, ERR_INVALID, "%s: is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`",
                path);
        goto done;
    }
    *m = (struct mapping){.data = data, .size = (size_t)st.st_size, .path = mem_strdup(path)};
    result = 0;
done:
    close(fd); /* the mapping keeps the file */
    return result;
}

void mapping_close(struct mapping *m)
{
    if (m->data)
        munmap((void *)m->data, m->size);
    free(m->path);
    *m = (struct mapping){0};
}
