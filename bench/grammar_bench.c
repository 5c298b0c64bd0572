/* What constrained decoding costs, over the tokenizer of a model or a tokenizer.json (from standard input):
 *
 *     build/grammar_bench MODEL                 zstd -dc tokenizer.json.zst | build/grammar_bench -
 *
 * Each schema is decoded twice, with its own answer cut into tokens: cold (the masks are made on the way) and
 * warm. Times are of mask and advance together, a token. The last column is the choice of a token from a row
 * of logits, of a constrained request (mask and all) and of a free one: greedy, and in brackets with top_p.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sample/grammar.h"
#include "sample/sampler.h"
#include "text/tokenizer.h"

static struct tokenizer *tokenizer;

static const char *bytes_of(void *arg, int32_t id, size_t *len)
{
    (void)arg;
    const char *bytes = tokenizer_bytes(tokenizer, id, len);
    if (tokenizer_is_special(tokenizer, id))
        *len = 0;
    return bytes;
}

static const struct {
    const char *name, *schema, *answer;
} cases[] = {
    {"person",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"},"
     "\"email\":"
     "{\"type\":\"string\"},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},\"required\":["
     "\"name\",\"age\","
     "\"email\",\"tags\"],\"additionalProperties\":false}",
     "{\n  \"name\": \"Ada Lovelace, the first programmer of them all\",\n  \"age\": 36,\n  \"email\": "
     "\"ada@example.org\",\n"
     "  \"tags\": [\"mathematics\", \"poetry\", \"engines\"]\n}"},
    {"bounded",
     "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\",\"maxLength\":80},\"code\":{"
     "\"type\":\"string\","
     "\"pattern\":\"^[A-Z]{2}-[0-9]{4}$\"},\"score\":{\"type\":\"number\",\"minimum\":0,\"maximum\":10},"
     "\"when\":{\"type\":"
     "\"string\",\"format\":\"date-time\"},\"kind\":{\"enum\":[\"small\",\"medium\",\"large\"]}},"
     "\"required\":[\"title\",\"code\","
     "\"score\",\"when\",\"kind\"]}",
     "{\"title\": \"A title that says what the report is about, briefly\", \"code\": \"AB-1234\", \"score\": "
     "7.25, \"when\": "
     "\"2024-02-29T12:30:00Z\", \"kind\": \"medium\"}"},
    {"recursive",
     "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"label\":{\"type\":\"string\"},\"children\":{"
     "\"type\":\"array\","
     "\"items\":{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"label\",\"children\"]}},\"$ref\":\"#/$defs/n\"}",
     "{\"label\": \"root\", \"children\": [{\"label\": \"left\", \"children\": [{\"label\": \"leaf one\", "
     "\"children\": []}]}, "
     "{\"label\": \"right\", \"children\": [{\"label\": \"leaf two\", \"children\": []}]}]}"},
    {"tool calls",
     "{\"format\":{\"type\":\"triggered_tags\",\"triggers\":[\"<tool_call>\"],\"tags\":[{\"begin\":\"<tool_"
     "call>\\n<function="
     "weather>\\n\",\"end\":\"</function>\\n</"
     "tool_call>\",\"content\":{\"type\":\"qwen_xml_parameter\",\"json_schema\":{"
     "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}},\"required\":[\"city\"]"
     "}}}]}}",
     "Let me look that up, it will not take long.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nSão "
     "Paulo, "
     "Brazil\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"},
    {"any object", NULL,
     "{\"result\": {\"items\": [1, 2.5, true, null, \"text with \\\"quotes\\\" in it\"], \"nested\": {\"a\": "
     "{\"b\": [{\"c\": []}]}}}, "
     "\"note\": \"Grüße, 你好, привет\"}"},
};

/* One decoding; the times a token, in seconds, are added up and the largest kept. */
static int decode(struct grammar *g, const struct token_list *ids, double *total, double *worst)
{
    struct grammar_matcher *m = grammar_matcher_create(g);
    uint32_t *bits = mem_alloc((size_t)grammar_mask_words(g) * sizeof *bits);
    struct err e = {0};
    int rc = 0;
    for (size_t i = 0; i < ids->n && rc == 0; i++) {
        int32_t id = ids->ids[i];
        size_t len;
        const char *bytes = bytes_of(NULL, id, &len);
        double begin = clock_now();
        rc = grammar_matcher_mask(m, bits, &e);
        bool allowed = rc == 0 && bits[id >> 5] >> (id & 31) & 1;
        if (!allowed || !grammar_matcher_advance(m, bytes, len))
            rc = -1;
        double seconds = clock_now() - begin;
        *total += seconds;
        *worst = seconds > *worst ? seconds : *worst;
        if (rc)
            fprintf(stderr, "token %zu (\"%.*s\") is not allowed %s\n", i, (int)len, bytes, e.msg);
    }
    if (rc == 0 && !grammar_matcher_can_end(m))
        rc = fprintf(stderr, "the answer is not complete\n");
    free(bits);
    grammar_matcher_free(m);
    return rc;
}

/* This thread's own time, as others may have the cores. */
static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds a token that the sampler takes over a row of logits; g NULL = free. The answer is the grammar's,
 * led by its tokens' logits. */
static double pick(struct grammar *g, int vocab, const struct token_list *ids, float temperature)
{
    enum { ROUNDS = 12 };
    struct sample_scratch scratch;
    float *row = mem_alloc((size_t)vocab * sizeof *row), *logits = mem_alloc((size_t)vocab * sizeof *logits);
    uint32_t x = 1;
    for (int i = 0; i < vocab; i++) {
        x = x * 1664525 + 1013904223;
        row[i] = (float)(x >> 8) / (1 << 22);
    }
    sample_scratch_init(&scratch, vocab);
    double best = 1e9;
    for (int k = 0; k < ROUNDS; k++) {
        double total = 0;
        struct sluice_sampling p;
        sluice_sampling_init(&p);
        p.grammar = g;
        p.temperature = temperature;
        p.top_p = 0.95f;
        struct sluice_bias none = {0, 0}; /* nothing is forced, so that every token is chosen */
        p.logit_bias = &none;
        p.n_logit_bias = 1;
        struct sampler *s = sampler_create(&p, vocab, NULL, 0);
        for (size_t i = 0; i < ids->n; i++) {
            memcpy(logits, row, (size_t)vocab * sizeof *row);
            logits[ids->ids[i]] = 100;
            double begin = cpu_now();
            int32_t id = sampler_pick(s, logits, (int)i, &scratch);
            if (id != ids->ids[i] || !sampler_accept(s, id))
                fprintf(stderr, "token %zu was not chosen\n", i);
            total += cpu_now() - begin;
        }
        sampler_free(s);
        best = total < best ? total : best;
    }
    sample_scratch_free(&scratch);
    free(row);
    free(logits);
    return best / (double)ids->n;
}

static struct grammar *compile(const char *schema, struct err *e)
{
    if (!schema)
        return grammar_from_json_object(NULL, e);
    json_t *root = json_loads(schema, 0, NULL);
    bool tag = json_object_get(root, "format") != NULL;
    struct grammar *g = tag ? grammar_from_structural_tag(root, NULL, e) : grammar_from_schema(root, NULL, e);
    json_decref(root);
    return g;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    if (argc == 2 && strcmp(argv[1], "-") == 0) {
        char name[] = "standard input";
        struct model_file f = {
            .kind = MODEL_FILE_HF, .path = name, .tokenizer = json_loadf(stdin, JSON_ALLOW_NUL, NULL)};
        tokenizer = f.tokenizer ? tokenizer_open(&f, &e) : NULL;
        json_decref(f.tokenizer);
    } else if (argc == 2) {
        struct model_file *f = model_file_open(argv[1], &e);
        tokenizer = f ? tokenizer_open(f, &e) : NULL;
        model_file_close(f);
    }
    if (!tokenizer) {
        fprintf(stderr, "usage: grammar_bench MODEL | -   %s\n", e.msg);
        return 2;
    }
    double begin = clock_now();
    struct grammar_vocab *v = grammar_vocab_create(tokenizer_size(tokenizer), bytes_of, NULL, &e);
    if (!v) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    printf("vocabulary: %d ids, trie %.1f MiB in %.0f ms\n", tokenizer_size(tokenizer),
           (double)grammar_vocab_memory(v) / 1048576, 1e3 * (clock_now() - begin));
    printf("%-12s %9s %7s %7s %11s %11s %11s %11s %9s   %s\n", "schema", "compile", "states", "tokens",
           "cold mean", "cold max", "warm mean", "warm max", "cache", "choice");
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin = clock_now();
        struct grammar *g = compile(cases[i].schema, &e);
        double seconds = clock_now() - begin, total[2] = {0}, worst[2] = {0};
        struct token_list ids = {0};
        if (!g ||
            tokenizer_encode(tokenizer, cases[i].answer, strlen(cases[i].answer), NULL, 0, 0, &ids, &e)) {
            fprintf(stderr, "%s: %s\n", cases[i].name, e.msg);
            return 1;
        }
        total[0] = worst[0] = 1e9;
        for (int k = 0; k < 5; k++) {
            double sum = 0, most = 0;
            grammar_unref(g);
            g = compile(cases[i].schema, &e);
            grammar_bind(g, v, 0);
            failed |= decode(g, &ids, &sum, &most);
            total[0] = sum < total[0] ? sum : total[0];
            worst[0] = most < worst[0] ? most : worst[0];
        }
        enum { ROUNDS = 20 };
        for (int k = 0; k < ROUNDS; k++)
            failed |= decode(g, &ids, &total[1], &worst[1]);
        struct grammar_size size;
        grammar_size(g, &size);
        printf("%-12s %6.2f ms %7d %7zu %8.1f us %8.1f us %8.1f us %8.1f us %5.1f MiB", cases[i].name,
               1e3 * seconds, size.states, ids.n, 1e6 * total[0] / (double)ids.n, 1e6 * worst[0],
               1e6 * total[1] / (double)ids.n / ROUNDS, 1e6 * worst[1], (double)size.cache_bytes / 1048576);
        int vocab = tokenizer_size(tokenizer);
        double with[2], without[2];
        for (int k = 0; k < 2; k++) {
            with[k] = pick(g, vocab, &ids, (float)k);
            without[k] = pick(NULL, vocab, &ids, (float)k);
        }
        printf("   %.0f - %.0f us (%.0f - %.0f us)\n", 1e6 * with[0], 1e6 * without[0], 1e6 * with[1],
               1e6 * without[1]);
        token_list_free(&ids);
        grammar_unref(g);
    }
    grammar_vocab_free(v);
    tokenizer_free(tokenizer);
    return failed ? 1 : 0;
}
