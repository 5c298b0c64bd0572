/* What the grammar tests share: a small vocabulary, whole-text acceptance, and the check that every other one
 * rests on: a mask must say of every token what trying the token's bytes says. */
#ifndef SLUICE_TESTS_GRAMMAR_TEST_H
#define SLUICE_TESTS_GRAMMAR_TEST_H

#include "unit.h"

#include "sample/grammar.h"

/* All single bytes, then pieces that span every kind of border: quotes, brackets, white space, digits, half
 * characters, and two tokens of the same bytes. */
static const char *const pieces[] = {
    "\"",
    "\":",
    "\",",
    "\", \"",
    "\":\"",
    "{\"",
    "\"}",
    "\"}}",
    "{}",
    "[]",
    "[[",
    "]]",
    "]}",
    "}]",
    "},",
    "},{",
    "{\"a\":",
    "a\":1",
    "  ",
    "    ",
    "\n\n",
    "\n  ",
    "\r\n",
    ", ",
    ": ",
    " {",
    " \"",
    "true",
    "false",
    "null",
    "tr",
    "ue",
    "12",
    "123",
    "-1",
    "0.5",
    "1e5",
    ".0",
    "1,2",
    "1]",
    "1}",
    "00",
    "ab",
    "abc",
    "abab",
    "ba",
    "hello",
    " world",
    "\\n",
    "\\\"",
    "\\u00",
    "\\ud83d",
    "\\\\",
    "\xc3",
    "\xa9",
    "\xc3\xa9",
    "\xf0\x9f",
    "\x98\x80",
    "\xf0\x9f\x98\x80",
    "a\xc3",
    "<t",
    "<tool>",
    "</",
    "</t",
    ">\n",
    "foo",
    "bar",
    "foobar",
    "x,y",
    "(((",
    ")))",
    "a+b",
    "*",
    "name",
    "\"name\"",
    "\"name\":",
    "age",
    "\"age\": ",
    "a\"",
    "b\",\"",
    "aaaa",
    "aaaaaaaa",
    "aaaaaaaaaaaaaaaa",
    "ab",
    "2024",
    "-01-",
    "T12:",
    "00Z",
    "@",
    ".com",
    "://",
};
enum { N_PIECES = sizeof pieces / sizeof pieces[0], N_IDS = 256 + N_PIECES + 1 };

static char single_bytes[256];

static const char *test_bytes(void *arg, int32_t id, size_t *len)
{
    (void)arg;
    if (id < 256) {
        *len = 1;
        return &single_bytes[id];
    }
    *len = id < 256 + N_PIECES ? strlen(pieces[id - 256]) : 0; /* the last id is a control token */
    return *len ? pieces[id - 256] : "";
}

static inline struct grammar_vocab *test_vocab(void)
{
    static struct grammar_vocab *v;
    if (!v) {
        struct err e = {0};
        for (int i = 0; i < 256; i++)
            single_bytes[i] = (char)i;
        v = grammar_vocab_create(N_IDS, test_bytes, NULL, &e);
        assert_non_null(v);
    }
    return v;
}

static inline struct grammar *bound(struct grammar *g, const struct err *e)
{
    if (!g)
        print_error("%s\n", e->msg);
    assert_non_null(g);
    grammar_bind(g, test_vocab(), 0);
    return g;
}

static inline bool accepts(struct grammar *g, const char *text, size_t n)
{
    struct grammar_matcher *m = grammar_matcher_create(g);
    bool ok = grammar_matcher_advance(m, text, n) && grammar_matcher_can_end(m);
    grammar_matcher_free(m);
    return ok;
}

static inline bool goes_on(struct grammar_matcher *m, const char *text)
{
    return grammar_matcher_advance(m, text, strlen(text));
}

/* The mask at m's place against every token tried by itself. */
static inline void check_mask(struct grammar_matcher *m)
{
    uint32_t bits[(N_IDS + 31) / 32];
    struct err e = {0};
    int rc = grammar_matcher_mask(m, bits, &e);
    if (rc)
        print_error("%s\n", e.msg);
    assert_int_equal(rc, 0);
    for (int id = 0; id < N_IDS; id++) {
        size_t n;
        const char *text = test_bytes(NULL, id, &n);
        bool fits = n > 0 && grammar_matcher_accepts(m, text, n) == n, set = bits[id / 32] >> (id % 32) & 1;
        if (fits != set)
            print_error("token %d \"%.*s\": mask %d, tried %d\n", id, (int)n, text, set, fits);
        assert_int_equal(fits, set);
    }
}

/* Walks at random from the start, checking every mask, until the text may end and more than `steps` steps
 * were made or nothing may follow. Returns the text (free it). */
static inline char *random_text(struct grammar *g, unsigned *seed, int steps)
{
    struct grammar_matcher *m = grammar_matcher_create(g);
    size_t len = 0, cap = 1 << 20;
    char *text = malloc(cap);
    assert_non_null(text);
    for (int i = 0; !grammar_matcher_must_end(m) && (i < steps || !grammar_matcher_can_end(m)); i++) {
        if (i < 200)
            check_mask(m);
        uint32_t bits[(N_IDS + 31) / 32];
        assert_int_equal(grammar_matcher_mask(m, bits, NULL), 0);
        int n = 0, pick = -1;
        for (int id = 0; id < N_IDS; id++)
            if (bits[id / 32] >> (id % 32) & 1)
                n++;
        assert_true(n > 0);
        /* In the end what closes things is preferred, so that the text does end. */
        *seed = *seed * 1103515245u + 12345u;
        for (const char *c = "\"]})1bc"; *c && i > steps && *seed >> 31 && pick < 0; c++)
            if (bits[(uint8_t)*c / 32] >> ((uint8_t)*c % 32) & 1)
                pick = (uint8_t)*c;
        int at = (int)(*seed >> 8) % n;
        for (int id = 0; id < N_IDS && pick < 0; id++)
            if (bits[id / 32] >> (id % 32) & 1 && at-- == 0)
                pick = id;
        size_t k;
        const char *bytes = test_bytes(NULL, pick, &k);
        assert_true(len + k < cap && i < 20000);
        assert_true(grammar_matcher_advance(m, bytes, k));
        memcpy(text + len, bytes, k);
        len += k;
    }
    text[len] = '\0';
    grammar_matcher_free(m);
    return text;
}

#endif
