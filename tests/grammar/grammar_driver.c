/* Runs grammars for tests/grammar (pytest): reads a request a line, writes an answer a line, both JSON.
 *
 *     {"kind": "schema", "spec": {…}, "options": {…}, "walks": 3, "seed": 1, "steps": 60, "accept": ["{}",
 * …]}
 *     {"texts": ["{…}", …], "accepted": [true, …], "seconds": 0.001, "states": 120}   or   {"error": "…"}
 *
 * A walk writes a text by picking tokens of a real tokenizer from the masks at random; along the way the mask
 * is compared with trying every token. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sample/grammar_internal.h"
#include "text/tokenizer.h"

static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;
static int n_ids;

static const char *bytes_of(void *arg, int32_t id, size_t *len)
{
    (void)arg;
    const char *bytes = tokenizer_bytes(tokenizer, id, len);
    if (tokenizer_is_special(tokenizer, id))
        *len = 0;
    return bytes;
}

static unsigned pick(uint64_t *state, unsigned n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)((*state >> 33) % n);
}

static bool has(const uint32_t *bits, int32_t id)
{
    return bits[id >> 5] >> (id & 31) & 1;
}

/* The mask against trying every token; an error text, or NULL. */
static const char *compare(struct grammar_matcher *m, const uint32_t *bits)
{
    static char text[200];
    for (int32_t id = 0; id < n_ids; id++) {
        size_t len;
        const char *bytes = bytes_of(NULL, id, &len);
        bool fits = len > 0 && grammar_matcher_accepts(m, bytes, len) == len;
        if (fits != has(bits, id)) {
            snprintf(text, sizeof text, "token %d \"%.*s\": the mask says %d, trying it %d", (int)id,
                     (int)len, bytes, has(bits, id), fits);
            return text;
        }
    }
    return NULL;
}

/* How many bytes are missing to an end: [states] to the end of the state's own rule, counts left aside. It
 * leads a walk out of texts that chance alone would hardly ever end. */
static int *distances(const struct grammar *g)
{
    int *d = mem_alloc((size_t)g->n_states * sizeof *d);
    for (int i = 0; i < g->n_states; i++)
        d[i] = g->states[i].flags & STATE_FINAL ? 0 : 1000000;
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = g->n_states - 1; i >= 0; i--) {
            int best = d[i];
            for (uint32_t x = g->states[i].first_edge; x < g->states[i + 1].first_edge; x++)
                best = d[g->edges[x].to] + 1 < best ? d[g->edges[x].to] + 1 : best;
            for (uint32_t x = g->states[i].first_call; x < g->states[i + 1].first_call; x++) {
                int way = d[g->rules[g->calls[x].rule].start] + d[g->calls[x].to];
                best = way < best ? way : best;
            }
            changed |= best < d[i];
            d[i] = best;
        }
    }
    return d;
}

static int frame_distance(const struct grammar_matcher *m, const int *d, int frame, int depth)
{
    int best = frame == 0 ? 0 : 1000000;
    for (int32_t r = m->frames[frame].returns; r >= 0 && depth < 300; r = m->returns[r].next) {
        const struct item *to = &m->returns[r].to;
        if (to->frame < frame || frame == 0) {
            int way = d[to->state] + frame_distance(m, d, to->frame, depth + 1);
            best = way < best ? way : best;
        }
    }
    return best;
}

static int distance(const struct grammar_matcher *m, const int *d)
{
    int best = m->can_end ? 0 : 1000000;
    for (int i = 0; i < m->sim.n_items; i++) {
        const struct item *it = &m->sim.items[i];
        int way = d[it->state] + frame_distance(m, d, it->frame, 0);
        best = way < best ? way : best;
    }
    return best;
}

/* One random text, which is added to texts; an error text, or NULL. */
static const char *walk(struct grammar *g, uint64_t seed, int steps, json_t *texts)
{
    struct grammar_matcher *m = grammar_matcher_create(g), *probe = grammar_matcher_fork(m);
    uint32_t *bits = mem_alloc((size_t)grammar_mask_words(g) * sizeof *bits);
    int *d = distances(g);
    struct str text = {0};
    const char *wrong = NULL;
    static struct err e;
    for (int i = 0; !wrong; i++) {
        bool can_end = grammar_matcher_can_end(m);
        if (grammar_matcher_must_end(m) || (can_end && (i > steps || pick(&seed, 4) == 0)))
            break;
        if (grammar_matcher_mask(m, bits, &e)) {
            wrong = can_end && strstr(e.msg, "no token") ? NULL : e.msg;
            break;
        }
        if (pick(&seed, 8) == 0 && (wrong = compare(m, bits)))
            break;
        int n = 0;
        for (int32_t id = 0; id < n_ids; id++)
            n += has(bits, id);
        if (n == 0)
            break; /* it can end: nothing else goes */
        int32_t id = -1;
        /* Towards the end, what leads there, mostly. */
        int nearest = 1000000;
        bool home = i > steps && pick(&seed, 10);
        for (int32_t k = 0; k < n_ids && home; k++) {
            size_t len;
            const char *bytes = bytes_of(NULL, k, &len);
            if (!has(bits, k) || len > 3)
                continue;
            grammar_matcher_copy(probe, m);
            grammar_matcher_advance(probe, bytes, len);
            int far = distance(probe, d);
            if (far < nearest) {
                nearest = far;
                id = k;
            }
        }
        int at = (int)pick(&seed, (unsigned)n);
        for (int32_t k = 0; k < n_ids && id < 0; k++)
            if (has(bits, k) && at-- == 0)
                id = k;
        size_t len;
        const char *bytes = bytes_of(NULL, id, &len);
        if (!grammar_matcher_advance(m, bytes, len))
            wrong = "a token of the mask was not accepted";
        str_add(&text, bytes, len);
        if (i > 10 * steps + 6000)
            wrong = "the text does not end";
    }
    if (!wrong) {
        json_t *s = json_stringn(str_text(&text), text.len);
        if (s)
            json_array_append_new(texts, s);
        else
            wrong = "the text is not valid UTF-8";
    }
    str_free(&text);
    free(bits);
    free(d);
    grammar_matcher_free(m);
    grammar_matcher_free(probe);
    return wrong;
}

static struct grammar *compile(const json_t *request, struct err *e)
{
    const char *kind = json_string_value(json_object_get(request, "kind"));
    const json_t *spec = json_object_get(request, "spec"), *o = json_object_get(request, "options");
    const char *text = json_string_value(spec) ? json_string_value(spec) : "";
    struct grammar_json_options options = {
        .no_whitespace = json_is_true(json_object_get(o, "no_whitespace")),
        .open_objects = json_is_true(json_object_get(o, "open_objects")),
        .whitespace_pattern = json_string_value(json_object_get(o, "whitespace_pattern")),
    };
    if (strcmp(kind, "schema") == 0)
        return grammar_from_schema(spec, &options, e);
    if (strcmp(kind, "json_object") == 0)
        return grammar_from_json_object(&options, e);
    if (strcmp(kind, "regex") == 0)
        return grammar_from_regex(text, strlen(text), e);
    if (strcmp(kind, "choice") == 0)
        return grammar_from_choice(spec, e);
    if (strcmp(kind, "ebnf") == 0)
        return grammar_from_ebnf(text, strlen(text), e);
    if (strcmp(kind, "tag") == 0)
        return grammar_from_structural_tag(spec, &options, e);
    if (strcmp(kind, "xml_parameters") == 0) {
        struct grammar_builder *b = grammar_builder_create();
        return grammar_builder_finish(b, grammar_xml_parameters(b, spec, &options), e);
    }
    err_set(e, ERR_INVALID, "unknown kind");
    return NULL;
}

static json_t *answer(const json_t *request)
{
    struct err e = {0};
    double begin = clock_now();
    struct grammar *g = compile(request, &e);
    double seconds = clock_now() - begin;
    if (!g)
        return json_pack("{s:s, s:f}", "error", e.msg, "seconds", seconds);
    grammar_bind(g, vocab, 0);
    struct grammar_size size;
    grammar_size(g, &size);
    json_t *texts = json_array(), *accepted = json_array(), *v;
    const char *wrong = NULL;
    json_int_t walks = json_integer_value(json_object_get(request, "walks"));
    json_int_t steps = json_integer_value(json_object_get(request, "steps"));
    for (json_int_t i = 0; i < walks && !wrong; i++)
        wrong = walk(g, (uint64_t)json_integer_value(json_object_get(request, "seed")) * 1000 + (uint64_t)i,
                     steps ? (int)steps : 60, texts);
    size_t i;
    json_array_foreach(json_object_get(request, "accept"), i, v)
    {
        struct grammar_matcher *m = grammar_matcher_create(g);
        bool ok = grammar_matcher_advance(m, json_string_value(v), json_string_length(v)) &&
                  grammar_matcher_can_end(m);
        json_array_append_new(accepted, json_boolean(ok));
        grammar_matcher_free(m);
    }
    grammar_unref(g);
    json_t *out = json_pack("{s:o, s:o, s:f, s:i}", "texts", texts, "accepted", accepted, "seconds", seconds,
                            "states", size.states);
    if (wrong)
        json_object_set_new(out, "wrong", json_string(wrong));
    return out;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct model_file *f = argc == 2 ? model_file_open(argv[1], &e) : NULL;
    tokenizer = f ? tokenizer_open(f, &e) : NULL;
    model_file_close(f);
    if (!tokenizer) {
        fprintf(stderr, "usage: grammar_driver MODEL   %s\n", e.msg);
        return 2;
    }
    n_ids = tokenizer_size(tokenizer);
    vocab = grammar_vocab_create(n_ids, bytes_of, NULL, &e);
    char *line = NULL;
    size_t cap = 0;
    while (vocab && getline(&line, &cap, stdin) > 0) {
        json_error_t error;
        json_t *request = json_loads(line, JSON_ALLOW_NUL, &error);
        json_t *out = json_is_object(request) ? answer(request) : json_pack("{s:s}", "error", error.text);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(out);
        json_decref(request);
    }
    free(line);
    grammar_vocab_free(vocab);
    tokenizer_free(tokenizer);
    return 0;
}
