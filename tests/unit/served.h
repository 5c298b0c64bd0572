/* llama-tiny's tokenizer and template before a fake engine: what tests of the API and the server serve. */
#ifndef SLUICE_TESTS_SERVED_H
#define SLUICE_TESTS_SERVED_H

#include "api/generation.h"
#include "api/model.h"
#include "fake_engine.h"
#include "unit.h"

struct served {
    struct sluice engine;
    struct model_file *file;
    struct tokenizer *tokenizer;
    struct chat_template *template;
    struct api_model model;
};

static const char *const served_names[] = {"tiny", "alias/of-tiny"};

/* max_model_len is 256, the vocabulary llama-tiny's 1024. Sampling defaults are the checkpoint's. */
static inline void served_open(struct served *s)
{
    struct err e = {0};
    memset(s, 0, sizeof *s);
    s->file = model_file_open(fixture("models/llama-tiny"), &e);
    assert_non_null(s->file);
    s->tokenizer = tokenizer_open(s->file, &e);
    assert_non_null(s->tokenizer);
    s->template = chat_template_parse(s->file->chat_template, strlen(s->file->chat_template), &e);
    assert_non_null(s->template);
    fake_engine_init(&s->engine, 1024, 256);
    s->model = (struct api_model){.engine = &s->engine,
                                  .tokenizer = s->tokenizer,
                                  .template = s->template,
                                  .names = served_names,
                                  .n_names = 2,
                                  .root = "tests/llama-tiny"};
    sampling_defaults_read(&s->model.defaults, s->file);
    api_limits_init(&s->model.limits);
    api_model_init(&s->model);
}

static inline void served_close(struct served *s)
{
    sluice_close(&s->engine);
    assert_int_equal(s->engine.n_submitted, s->engine.n_freed);
    api_model_free(&s->model);
    chat_template_free(s->template);
    tokenizer_free(s->tokenizer);
    model_file_close(s->file);
}

/* Starts a request that was read from `text`; a refusal fails the test. */
static inline struct generation *served_start(struct served *s, struct api_request *r, const char *text,
                                              struct api_error *e)
{
    if (!r)
        fail_msg("%s: %s", text, e->message);
    struct generation *g = generation_start(&s->model, r, clock_now(), e);
    assert_non_null(g);
    return g;
}

/* Steps, at most so often, and advances until the answer is complete; returns all that was written. */
static inline char *served_finish(struct served *s, struct generation *g, int most)
{
    struct str out = {0};
    int steps = 0;
    while (!generation_advance(g, NULL, &out)) {
        sluice_step(&s->engine);
        assert_true(++steps < most);
    }
    return str_take(&out);
}

/* A whole answer, which must be JSON; frees the text. */
static inline json_t *served_json(char *text)
{
    json_error_t e;
    json_t *json = json_loads(text, 0, &e);
    if (!json)
        fail_msg("not JSON: %s: %s", e.text, text);
    free(text);
    return json;
}

#endif
