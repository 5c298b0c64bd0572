/* Grammars, bad words and budgets of thought in the engine, on tiny models of random weights, which have no
 * habit of being right: what they write is what they are held to. And the laws hold for it too. */
#include "opened.h"

#include "sample/grammar.h"

enum { VOCAB = 1024, EOS = 2, ANSWER = 100, THINK = 256, END_THINK, N_WORDS = 22 };

/* Ids 0 … 255 are bytes, the next are words, the others pairs of letters. The end token is no text. */
static const char *const words[N_WORDS] = {
    "<think>", "</think>", "{\"",  "\":",  "\": ", "\", \"", "name",   "na", "am", "ame", "age",
    "true",    "false",    "null", "\n\n", "\n</", "\"}",    "city\"", "km", "12", "é",   "<tool_call>"};

static char texts[VOCAB][16]; /* only read once the threads are there */

static void write_texts(void)
{
    for (int id = 0; id < VOCAB; id++)
        if (id < 256)
            texts[id][0] = (char)id;
        else if (id < 256 + N_WORDS)
            strcpy(texts[id], words[id - 256]);
        else
            snprintf(texts[id], sizeof texts[0], "%c%c", 'a' + id % 26, 'a' + id / 26 % 26);
}

static const char *text_of(void *arg, int32_t id, size_t *len)
{
    (void)arg;
    *len = id == EOS ? 0 : id < 256 ? 1 : strlen(texts[id]);
    return texts[id];
}

static struct grammar_vocab *vocab;

static int set_up(void **state)
{
    struct err e = {0};
    (void)state;
    write_texts();
    vocab = grammar_vocab_create(VOCAB, text_of, NULL, &e);
    return vocab ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    grammar_vocab_free(vocab);
    return 0;
}

static struct grammar *bound(struct grammar *g, struct err *e)
{
    if (!g)
        fail_msg("%s", e->msg);
    grammar_bind(g, vocab, 0);
    return g;
}

static struct grammar *schema(const char *text)
{
    struct err e = {0};
    json_t *json = json_loads(text, 0, NULL);
    const struct grammar_json_options o = {.no_whitespace = true};
    struct grammar *g = grammar_from_schema(json, &o, &e);
    json_decref(json);
    return bound(g, &e);
}

static struct grammar *regex(const char *pattern)
{
    struct err e = {0};
    return bound(grammar_from_regex(pattern, strlen(pattern), &e), &e);
}

struct answer {
    int32_t ids[ANSWER];
    char text[ANSWER * 16], error[200];
    int n, preemptions;
    enum sluice_finish finish;
};

static void collect(const struct sluice_request *r, struct answer *a)
{
    struct sluice_progress g;
    memset(a, 0, sizeof *a);
    sluice_request_progress(r, &g);
    a->n = g.n_tokens;
    a->finish = g.finish;
    a->preemptions = g.preemptions;
    snprintf(a->error, sizeof a->error, "%s", sluice_request_error(r));
    memcpy(a->ids, sluice_request_tokens(r), (size_t)g.n_tokens * sizeof(int32_t));
    for (int i = 0; i < a->n; i++) {
        size_t len;
        const char *t = text_of(NULL, a->ids[i], &len);
        strncat(a->text, t, len);
    }
}

static struct sluice_request *submit(struct sluice *s, int who, const struct sluice_sampling *p)
{
    struct err e = {0};
    int32_t prompt[60];
    for (int i = 0; i < 60; i++)
        prompt[i] = (who * 131 + i * 17) % 900 + 3;
    struct sluice_request *r = sluice_submit(s, prompt, 20 + who % 40, p, &e);
    if (!r)
        fail_msg("%s", e.msg);
    return r;
}

static void run(struct sluice *s, int who, const struct sluice_sampling *p, struct answer *a)
{
    struct sluice_request *r = submit(s, who, p);
    while (sluice_step(s) > 0)
        ;
    collect(r, a);
    sluice_request_free(r);
}

static const int32_t stop[] = {EOS};

static void sampling(int who, struct grammar *g, struct sluice_sampling *p)
{
    sluice_sampling_init(p);
    p->temperature = who % 3 ? 1.0f : 0.0f;
    p->top_p = who % 4 == 1 ? 0.8f : 1;
    p->top_k = who % 5 == 2 ? 30 : 0;
    p->min_p = who % 7 == 3 ? 0.05f : 0;
    p->repetition_penalty = who % 6 == 4 ? 1.3f : 1;
    p->seed = (uint64_t)who;
    p->max_tokens = ANSWER;
    p->stop_ids = stop;
    p->n_stop_ids = 1;
    p->grammar = g;
}

#define PERSON                                                                                          \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{"    \
    "\"type\":"                                                                                         \
    "\"integer\",\"minimum\":0,\"maximum\":150},\"ok\":{\"type\":\"boolean\"}},\"required\":[\"name\"," \
    "\"age\",\"ok\"]}"

/* Is the text what the grammar allows, whole where the answer was not cut? */
static void check(struct grammar *g, const struct answer *a)
{
    struct grammar_matcher *m = grammar_matcher_create(g);
    if (!grammar_matcher_advance(m, a->text, strlen(a->text)))
        fail_msg("\"%s\" is not what the grammar allows", a->text);
    if (a->finish == SLUICE_STOP && !grammar_matcher_can_end(m))
        fail_msg("\"%s\" ends too early", a->text);
    assert_true(a->finish == SLUICE_STOP || (a->finish == SLUICE_LENGTH && a->n == ANSWER));
    grammar_matcher_free(m);
}

static void answers_have_the_form(void **state)
{
    (void)state;
    const struct sluice_options o = {.threads = 2, .max_num_seqs = 4, .max_model_len = 240};
    static const char *const models[] = {"models/llama-tiny", "models/qwen35-tiny"};
    for (int m = 0; m < 2; m++) {
        struct sluice *s = open_model(models[m], &o);
        struct grammar *forms[] = {
            schema(PERSON), regex("[a-c]{2,8}(-[0-9]+)?"), regex("yes|no|maybe"),
            schema("{\"type\":\"array\",\"items\":{\"enum\":[\"é\",1,null]},\"maxItems\":9}")};
        int complete = 0;
        for (int f = 0; f < 4; f++)
            for (int who = 0; who < 8; who++) {
                struct sluice_sampling p;
                struct answer a;
                sampling(who, forms[f], &p);
                p.min_tokens = who == 7 ? 5 : 0;
                run(s, who, &p, &a);
                check(forms[f], &a);
                complete += a.finish == SLUICE_STOP;
                if (f == 2) /* nothing may follow: it ends by itself, with no end token */
                    assert_true(a.finish == SLUICE_STOP && a.ids[a.n - 1] != EOS);
            }
        assert_true(complete > 20);
        sluice_close(s);
        for (int f = 0; f < 4; f++)
            grammar_unref(forms[f]);
    }
}

/* Constrained and free requests in turn, in one batch; a small pool preempts them. */
enum { N = 6 };
static void run_all(struct sluice *s, struct grammar *g, struct answer *out)
{
    struct sluice_request *r[N];
    for (int i = 0; i < N; i++) {
        struct sluice_sampling p;
        sampling(i, i % 2 ? g : NULL, &p);
        p.max_tokens = 50;
        r[i] = submit(s, i, &p);
    }
    while (sluice_step(s) > 0)
        ;
    for (int i = 0; i < N; i++) {
        collect(r[i], &out[i]);
        sluice_request_free(r[i]);
    }
}

static void company_changes_nothing(void **state)
{
    (void)state;
    static const char *const models[] = {"models/llama-tiny", "models/qwen35-tiny"};
    for (int m = 0; m < 2; m++) {
        struct sluice_options o = {.threads = 1, .max_num_seqs = N, .max_model_len = 240};
        struct grammar *g = schema(PERSON);
        struct answer solo[N], all[N];
        struct sluice *s = open_model(models[m], &o);
        size_t per_token = sluice_plan(s)->kv_bytes_per_token;
        for (int i = 0; i < N; i++) {
            struct sluice_sampling p;
            sampling(i, i % 2 ? g : NULL, &p);
            p.max_tokens = 50;
            run(s, i, &p, &solo[i]);
        }
        sluice_close(s);
        int preempted = 0;
        for (int way = 0; way < 4; way++) {
            o.threads = way == 1 ? 3 : 1;
            o.max_num_batched_tokens = way == 2 ? N : 0; /* forced tokens must wait for the next step */
            o.kv_cache_bytes = way == 3 ? per_token * 144 : 0;
            s = open_model(models[m], &o);
            run_all(s, g, all);
            for (int i = 0; i < N; i++) {
                preempted += all[i].preemptions;
                assert_int_equal(all[i].finish, solo[i].finish);
                assert_int_equal(all[i].n, solo[i].n);
                assert_memory_equal(all[i].ids, solo[i].ids, sizeof all[i].ids);
            }
            sluice_close(s);
        }
        assert_true(preempted > 0);
        grammar_unref(g);
    }
}

/* What can only be one text is not computed token by token, the answer is the same as if it were, and each
 * token is still computed once. */
static void forced_tokens_share_a_step(void **state)
{
    (void)state;
    const struct sluice_options o = {.threads = 1, .max_model_len = 240};
    struct sluice *s = open_model("models/qwen35-tiny", &o);
    struct grammar *g = regex("(one|two): the only way to go on is this one [0-9]{3}, and then the end\\.");
    for (int who = 0; who < 3; who++) {
        struct sluice_stats before, after;
        struct sluice_sampling p;
        struct answer fast, slow;
        sampling(who, g, &p);
        sluice_stats(s, &before);
        run(s, who, &p, &fast);
        sluice_stats(s, &after);
        check(g, &fast);
        uint64_t steps = after.steps - before.steps;
        /* the last ones need not be computed at all */
        assert_in_range(after.total.decode_tokens - before.total.decode_tokens, fast.n / 3, fast.n - 1);
        assert_int_equal(after.generation_tokens - before.generation_tokens, fast.n);
        if (steps * 3 > (uint64_t)fast.n)
            fail_msg("%d tokens took %d steps", fast.n, (int)steps);
        p.n_logprobs = 2;
        run(s, who, &p, &slow);
        assert_int_equal(slow.n, fast.n);
        assert_memory_equal(slow.ids, fast.ids, sizeof fast.ids);
    }
    grammar_unref(g);
    sluice_close(s);
}

static bool holds(const struct answer *a, const int32_t *ids, int n)
{
    for (int i = 0; i + n <= a->n; i++)
        if (memcmp(a->ids + i, ids, (size_t)n * sizeof *ids) == 0)
            return true;
    return false;
}

static void bad_words_do_not_occur(void **state)
{
    (void)state;
    const struct sluice_options o = {.threads = 1, .max_model_len = 240};
    struct sluice *s = open_model("models/llama-tiny", &o);
    for (int who = 0; who < 4; who++) {
        struct sluice_sampling p;
        struct answer free_answer, a;
        sampling(who, NULL, &p);
        p.n_stop_ids = 0;
        run(s, who, &p, &free_answer);
        /* a token and a pair that it would have written, and a word too long to ever be begun */
        int32_t one[] = {free_answer.ids[3]}, two[] = {free_answer.ids[8], free_answer.ids[9]},
                three[] = {1, 1, 1};
        const struct sluice_word bad[] = {{one, 1}, {two, 2}, {three, 3}};
        p.bad_words = bad;
        p.n_bad_words = 3;
        run(s, who, &p, &a);
        assert_int_equal(a.n, ANSWER);
        assert_false(holds(&a, one, 1) || holds(&a, two, 2));
        int same = 0; /* up to the first one it is what it was */
        while (a.ids[same] == free_answer.ids[same])
            same++;
        assert_true(free_answer.ids[same] == one[0] || (same == 9 && free_answer.ids[9] == two[1]));
    }
    sluice_close(s);
}

static void thoughts_end_in_time(void **state)
{
    (void)state;
    const struct sluice_options o = {.threads = 1, .max_model_len = 240};
    struct sluice *s = open_model("models/qwen35-tiny", &o);
    static const int32_t end[] = {'\n', END_THINK, '\n', '\n'};
    const char *mark = "</think>";
    struct err e = {0};
    struct grammar_builder *b = grammar_builder_create();
    const char *pattern = "\n{0,2}(yes|no)";
    grammar_node rest = grammar_regex(b, pattern, strlen(pattern));
    struct grammar *g = bound(grammar_builder_finish(b, grammar_free_text(b, &mark, &rest, 1), &e), &e);
    for (int budget = 0; budget < 30; budget += 14)
        for (int with = 0; with < 2; with++)
            for (int who = 0; who < 3; who++) {
                struct sluice_sampling p;
                struct answer a;
                sampling(who, with ? g : NULL, &p);
                const struct sluice_bias never = {END_THINK, -100}; /* it does not end by itself */
                p.logit_bias = &never;
                p.n_logit_bias = 1;
                p.n_stop_ids = 0;
                p.thinking_end = end;
                p.n_thinking_end = 4;
                p.thinking_budget = budget;
                p.thinking_open = true;
                p.texts = vocab;
                run(s, who, &p, &a);
                int at = 0;
                while (at < a.n && a.ids[at] != END_THINK)
                    at++;
                /* after the budget, or up to three tokens later if a character was half written */
                assert_in_range(at, budget + 1, budget + 1 + 3);
                assert_memory_equal(a.ids + at - 1, end, sizeof end);
                if (with) {
                    assert_int_equal(a.finish, SLUICE_STOP);
                    assert_true(strstr(a.text, "</think>\n\nyes") || strstr(a.text, "</think>\n\nno"));
                }
            }
    grammar_unref(g);
    sluice_close(s);
}

static void dead_ends_are_errors(void **state)
{
    (void)state;
    const struct sluice_options o = {.threads = 1, .max_model_len = 240};
    struct sluice *s = open_model("models/llama-tiny", &o);
    struct grammar *g = regex("ab*c?");
    struct sluice_sampling p;
    struct answer a;
    struct err e = {0};
    static const int32_t only_a[] = {'a'}, only_x[] = {'x'};
    sampling(0, g, &p);
    p.allowed_ids = only_x; /* nothing that may come is allowed */
    p.n_allowed_ids = 1;
    run(s, 0, &p, &a);
    assert_int_equal(a.finish, SLUICE_ERROR);
    assert_int_equal(a.n, 0);
    assert_non_null(strstr(a.error, "allowed_token_ids"));
    p.allowed_ids = only_a; /* nothing that may follow, but the text may end */
    run(s, 0, &p, &a);
    assert_int_equal(a.finish, SLUICE_STOP);
    assert_string_equal(a.text, "a");
    /* and a free request goes on as ever */
    sampling(0, NULL, &p);
    run(s, 0, &p, &a);
    assert_true(a.n > 0 && a.finish != SLUICE_ERROR);
    /* a grammar that speaks of other tokens is refused */
    struct grammar_vocab *other = grammar_vocab_create(500, text_of, NULL, &e);
    struct grammar *foreign = grammar_from_regex("a", 1, &e);
    grammar_bind(foreign, other, 0);
    sampling(0, foreign, &p);
    assert_null(sluice_submit(s, only_a, 1, &p, &e));
    assert_non_null(strstr(e.msg, "vocabulary"));
    grammar_unref(foreign);
    grammar_vocab_free(other);
    grammar_unref(g);
    sluice_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_have_the_form),      cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(forced_tokens_share_a_step), cmocka_unit_test(bad_words_do_not_occur),
        cmocka_unit_test(thoughts_end_in_time),       cmocka_unit_test(dead_ends_are_errors)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
