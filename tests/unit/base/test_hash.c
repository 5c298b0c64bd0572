/* The hash: the same however the bytes are cut, and another one for every changed, added or dropped byte. */
#include "base/hash.h"
#include "unit.h"

enum { N = 200 };

static void digest(const unsigned char *data, size_t n, size_t piece, uint64_t out[2])
{
    struct hash h;
    hash_init(&h);
    for (size_t i = 0; i < n; i += piece)
        hash_add(&h, data + i, n - i < piece ? n - i : piece);
    hash_end(&h, out);
}

static void pieces_do_not_matter(void **state)
{
    (void)state;
    unsigned char data[N];
    for (int i = 0; i < N; i++)
        data[i] = (unsigned char)(i * 37);
    for (size_t n = 0; n <= N; n++) {
        uint64_t whole[2], cut[2];
        digest(data, n, N, whole);
        for (size_t piece = 1; piece < 70; piece += 3) {
            digest(data, n, piece, cut);
            assert_memory_equal(whole, cut, sizeof whole);
        }
    }
}

static void every_bit_and_byte_matters(void **state)
{
    (void)state;
    static uint64_t seen[N * 8 + N + 1][2]; /* of all variants: none may agree in either half */
    unsigned char data[N] = {0};
    int n_seen = 0;
    for (int bit = 0; bit < N * 8; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        digest(data, N, 64, seen[n_seen++]);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    for (size_t n = 0; n <= N; n++) /* zeros of every length */
        digest(data, n, 64, seen[n_seen++]);
    for (int i = 0; i < n_seen; i++)
        for (int k = 0; k < i; k++)
            assert_true(seen[i][0] != seen[k][0] && seen[i][1] != seen[k][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_do_not_matter),
                                       cmocka_unit_test(every_bit_and_byte_matters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
