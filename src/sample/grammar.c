/* The grammars that need no file of their own, and what is shared by all: binding to a vocabulary, sizes. */
#include "sample/grammar.h"

#include <string.h>

#include "base/mem.h"
#include "sample/grammar_internal.h"

struct grammar *grammar_from_regex(const char *pattern, size_t len, struct err *e)
{
    struct grammar_builder *b = grammar_builder_create();
    if (len == 0)
        builder_fail(b, ERR_INVALID, "the regular expression is empty");
    return grammar_builder_finish(b, grammar_regex(b, pattern, len), e);
}

struct grammar *grammar_from_ebnf(const char *text, size_t len, struct err *e)
{
    struct grammar_builder *b = grammar_builder_create();
    return grammar_builder_finish(b, grammar_ebnf(b, text, len), e);
}

grammar_node grammar_choice(struct grammar_builder *b, const json_t *strings)
{
    size_t n = json_array_size(strings);
    if (!json_is_array(strings) || n == 0)
        return builder_fail(b, ERR_INVALID, "a choice must be an array of at least one string");
    if (n > GRAMMAR_MAX_NODES / 2)
        return builder_fail(b, ERR_INVALID, "a choice of more than %d strings", GRAMMAR_MAX_NODES / 2);
    grammar_node *ways = mem_alloc(n * sizeof *ways), out = -1;
    for (size_t i = 0; i < n && !builder_failed(b); i++) {
        const json_t *s = json_array_get(strings, i);
        if (!json_is_string(s) || json_string_length(s) == 0)
            builder_fail(b, ERR_INVALID, "choice [%zu] must be a string that is not empty", i);
        else
            ways[i] = grammar_literal(b, json_string_value(s), json_string_length(s));
    }
    if (!builder_failed(b))
        out = grammar_alt(b, ways, (int)n);
    free(ways);
    return out;
}

struct grammar *grammar_from_choice(const json_t *strings, struct err *e)
{
    struct grammar_builder *b = grammar_builder_create();
    return grammar_builder_finish(b, grammar_choice(b, strings), e);
}

bool grammar_bind(struct grammar *g, struct grammar_vocab *v, size_t cache_bytes)
{
    if (!g->cache)
        g->cache = mask_cache_create(g, v, cache_bytes ? cache_bytes : GRAMMAR_CACHE_BYTES);
    if (g->cache)
        g->vocab = v;
    return g->cache != NULL;
}

const struct grammar_vocab *grammar_vocab_of(const struct grammar *g)
{
    return g->vocab;
}

void grammar_warm(struct grammar *g, double seconds)
{
    if (g->cache)
        mask_warm(g->cache, seconds);
}

int grammar_mask_words(const struct grammar *g)
{
    return g->vocab ? (g->vocab->n_ids + 31) / 32 : 0;
}

void grammar_size(struct grammar *g, struct grammar_size *out)
{
    *out = (struct grammar_size){.rules = g->n_rules, .states = g->n_states, .edges = g->n_edges};
    out->bytes = sizeof *g + (size_t)g->n_states * sizeof *g->states + (size_t)g->n_edges * sizeof *g->edges +
                 (size_t)g->n_calls * sizeof *g->calls + (size_t)g->n_rules * sizeof *g->rules;
    if (g->cache)
        mask_size(g->cache, out);
}
