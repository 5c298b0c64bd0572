#include "api/salt.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static uint64_t rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static void rounds(uint64_t v[4], int n)
{
    while (n-- > 0) {
        v[0] += v[1];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[0] = rotate(v[0], 32);
        v[2] += v[3];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[2] = rotate(v[2], 32);
    }
}

void siphash128(const uint64_t key[2], const uint8_t *data, size_t len, uint64_t out[2])
{
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du ^ 0xee,
                     key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};
    for (size_t i = 0; i <= len / 8; i++) { /* the last word holds the rest, and the length on top */
        uint64_t m = i == len / 8 ? (uint64_t)len << 56 : 0;
        size_t n = i == len / 8 ? len % 8 : 8;
        for (size_t k = 0; k < n; k++)
            m |= (uint64_t)data[i * 8 + k] << (8 * k);
        v[3] ^= m;
        rounds(v, 2);
        v[0] ^= m;
    }
    v[2] ^= 0xee;
    rounds(v, 4);
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    rounds(v, 4);
    out[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

static uint64_t process_key[2];

static bool has_key;

static void draw_key(void)
{
    if (has_key || getrandom(process_key, sizeof process_key, 0) == sizeof process_key)
        return;
    struct timespec now; /* no random numbers this early in the system's life: better than a fixed key */
    clock_gettime(CLOCK_REALTIME, &now);
    process_key[0] = (uint64_t)now.tv_sec * 1000000007u ^ (uint64_t)now.tv_nsec << 32;
    process_key[1] = (uint64_t)getpid() * 0x9e3779b97f4a7c15u;
}

void salt_digest(const char *salt, size_t len, uint64_t digest[2])
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, draw_key);
    siphash128(process_key, (const uint8_t *)salt, len, digest);
    if (digest[0] == 0 && digest[1] == 0)
        digest[0] = 1;
}

int salt_use_key_file(const char *path, struct err *e)
{
    uint64_t key[2];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool made = fd < 0 && errno == ENOENT;
    if (made) {
        draw_key();
        memcpy(key, process_key, sizeof key);
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    }
    if (fd < 0)
        return err_set(e, ERR_IO, "%s cannot be %s: %s", path, made ? "made" : "read", strerror(errno));
    ssize_t n = made ? write(fd, key, sizeof key) : read(fd, key, sizeof key);
    close(fd);
    if (n != sizeof key) {
        if (made)
            unlink(path);
        return err_set(e, ERR_IO, "%s %s", path,
                       made ? "cannot be written"
                            : "is cut short: remove it, and what was cached with salts");
    }
    memcpy(process_key, key, sizeof process_key);
    has_key = true;
    return 0;
}
