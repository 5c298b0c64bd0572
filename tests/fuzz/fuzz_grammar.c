/* Grammars: the first byte says which kind, then its text, and after a zero byte an answer. What is refused
 * has a reason; what compiles is matched against the answer byte by byte, and on the way each mask must say
 * of some tokens what trying them says. */
#include "fuzz.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "sample/grammar.h"

enum { N_IDS = 300 };

static const char *token(void *arg, int32_t id, size_t *len)
{
    static const char *const pieces[] = {
        "\":", "\", \"", "{\"", "\"}", "]}", "}}", "[[",  "  ",    "\n ",      "12",       "ab",
        "aa",  "abab",   "tr",  "ue",  "<t", "</", "\\n", "\\u00", "\xc3\xa9", "\x98\x80", "a\xf0\x9f"};
    static char bytes[256];
    (void)arg;
    *len = 1;
    if (id < 256) {
        bytes[id] = (char)id;
        return &bytes[id];
    }
    const char *piece = (size_t)(id - 256) < sizeof pieces / sizeof pieces[0] ? pieces[id - 256] : "";
    *len = strlen(piece);
    return piece;
}

static struct grammar *compile(uint8_t kind, const char *text, size_t len, struct err *e)
{
    struct grammar *g = NULL;
    json_error_t error;
    json_t *spec = strchr("rg", kind) && kind ? NULL : json_loadb(text, len, JSON_DECODE_ANY, &error);
    struct grammar_json_options o = {.no_whitespace = len & 1, .open_objects = len & 2};
    switch (kind) {
    case 'r':
        g = grammar_from_regex(text, len, e);
        break;
    case 'g':
        g = grammar_from_ebnf(text, len, e);
        break;
    case 't':
        g = grammar_from_structural_tag(spec, &o, e);
        break;
    case 'c':
        g = grammar_from_choice(spec, e);
        break;
    case 'x': {
        struct grammar_builder *b = grammar_builder_create();
        g = grammar_builder_finish(b, grammar_xml_parameters(b, spec, &o), e);
        break;
    }
    default:
        g = grammar_from_schema(spec, &o, e);
    }
    json_decref(spec);
    return g;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct grammar_vocab *v;
    struct err e = {0};
    if (!v)
        v = grammar_vocab_create(N_IDS, token, NULL, &e);
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 1;
    const char *zero = memchr(text, '\0', size - 1);
    size_t len = zero ? (size_t)(zero - text) : size - 1;
    struct grammar *g = compile(data[0], text, len, &e);
    if (!g) {
        fuzz_check(e.code != ERR_NONE && e.msg[0], "a refused grammar has a reason");
        return 0;
    }
    grammar_bind(g, v, 0);
    struct grammar_matcher *m = grammar_matcher_create(g);
    const uint8_t *answer = data + 1 + len + (zero != NULL), *end = data + size;
    for (int steps = 0; steps < 60; steps++) {
        uint32_t bits[(N_IDS + 31) / 32];
        int rc = grammar_matcher_mask(m, bits, &e);
        if (rc)
            break; /* too ambiguous: said so */
        int last = -1;
        for (int32_t id = 0; id < N_IDS; id++) {
            size_t n;
            const char *bytes = token(NULL, id, &n);
            bool set = bits[id / 32] >> (id % 32) & 1;
            if (set)
                last = id;
            if (set || id % 7 == steps % 7)
                fuzz_check(set == (n > 0 && grammar_matcher_accepts(m, bytes, n) == n), "masks equal trying");
        }
        fuzz_check(last >= 0 || grammar_matcher_can_end(m), "no dead ends");
        if (last < 0)
            break;
        uint8_t byte = answer < end ? *answer++ : (uint8_t)steps;
        if (!grammar_matcher_advance(m, (const char *)&byte, 1)) {
            size_t n;
            const char *bytes = token(NULL, last, &n);
            fuzz_check(grammar_matcher_advance(m, bytes, n), "a token of the mask goes on");
        }
    }
    grammar_matcher_free(m);
    grammar_unref(g);
    return 0;
}
