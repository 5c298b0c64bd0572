#include "base/hash.h"

#include <string.h>

static const uint64_t odd[4] = {UINT64_C(0x9e3779b97f4a7c15), UINT64_C(0xc2b2ae3d27d4eb4f),
                                UINT64_C(0xd6e8feb86659fd93), UINT64_C(0xa0761d6478bd642f)};

void hash_init(struct hash *h)
{
    *h = (struct hash){.lane = {1, 2, 3, 4}};
}

/* Each step is a bijection of the lane and of the word: one changed word always changes the lane. */
static inline uint64_t absorb(uint64_t lane, uint64_t word, uint64_t factor)
{
    lane = (lane ^ word) * factor;
    return lane ^ lane >> 32;
}

static void stripe(uint64_t *lane, const unsigned char *bytes)
{
    uint64_t w[4];
    memcpy(w, bytes, sizeof w);
    for (int i = 0; i < 4; i++)
        lane[i] = absorb(lane[i], w[i], odd[i]);
}

void hash_add(struct hash *h, const void *data, size_t n)
{
    const unsigned char *p = data;
    size_t held = h->n % sizeof h->tail;
    h->n += n;
    if (held) {
        size_t room = sizeof h->tail - held, take = n < room ? n : room;
        memcpy(h->tail + held, p, take);
        if (held + take < sizeof h->tail)
            return;
        stripe(h->lane, h->tail);
        p += take;
        n -= take;
    }
    uint64_t lane[4];
    memcpy(lane, h->lane, sizeof lane);
    for (; n >= sizeof h->tail; n -= sizeof h->tail, p += sizeof h->tail)
        stripe(lane, p);
    memcpy(h->lane, lane, sizeof lane);
    if (n)
        memcpy(h->tail, p, n);
}

void hash_end(const struct hash *h, uint64_t out[2])
{
    uint64_t lane[4];
    unsigned char last[sizeof h->tail] = {0};
    memcpy(lane, h->lane, sizeof lane);
    memcpy(last, h->tail, h->n % sizeof h->tail);
    stripe(lane, last);
    uint64_t a = h->n, b = ~h->n;
    for (int i = 0; i < 4; i++) {
        a = absorb(a, lane[i], odd[(i + 1) % 4]);
        b = absorb(b, lane[3 - i] ^ a, odd[i]);
    }
    out[0] = absorb(a, b >> 17, odd[2]);
    out[1] = absorb(b, a >> 13, odd[3]);
}
