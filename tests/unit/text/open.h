/* Opens tokenizers for the tests, from files without weights as well, and encodes with one call. */
#ifndef SLUICE_TESTS_TEXT_OPEN_H
#define SLUICE_TESTS_TEXT_OPEN_H

#include "unit.h"

#include "text/tokenizer.h"

/* The JSON files of a tokenizer as an opened model directory; they are taken over. */
static inline struct tokenizer *open_json(json_t *tokenizer, json_t *tokenizer_config,
                                          json_t *generation_config, json_t *config, struct err *e)
{
    char name[] = "test";
    struct model_file f = {
        .kind = MODEL_FILE_HF,
        .path = name,
        .tokenizer = tokenizer,
        .tokenizer_config = tokenizer_config,
        .generation_config = generation_config,
        .config = config,
    };
    struct tokenizer *t = tokenizer_open(&f, e);
    json_decref(tokenizer);
    json_decref(tokenizer_config);
    json_decref(generation_config);
    json_decref(config);
    return t;
}

static inline json_t *load_member(const char *dir, const char *name)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return json_load_file(path, JSON_ALLOW_NUL, NULL);
}

/* A directory's tokenizer; its weights need not be there. */
static inline struct tokenizer *open_dir(const char *dir, struct err *e)
{
    return open_json(load_member(dir, "tokenizer.json"), load_member(dir, "tokenizer_config.json"),
                     load_member(dir, "generation_config.json"), load_member(dir, "config.json"), e);
}

static inline struct tokenizer *open_gguf(const char *path, struct err *e)
{
    struct model_file *f = model_file_open(path, e);
    struct tokenizer *t = f ? tokenizer_open(f, e) : NULL;
    model_file_close(f);
    return t;
}

/* Made by the caller's text of a tokenizer.json. */
static inline struct tokenizer *open_text(const char *json, struct err *e)
{
    json_t *root = json_loads(json, JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    return open_json(root, NULL, NULL, NULL, e);
}

static inline struct token_list encode_marked(const struct tokenizer *t, const char *text, size_t len,
                                              const uint8_t *literal, unsigned flags)
{
    struct token_list ids = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_encode(t, text, len, literal, flags, 0, &ids, &e), 0);
    return ids;
}

static inline struct token_list encode(const struct tokenizer *t, const char *text, unsigned flags)
{
    return encode_marked(t, text, strlen(text), NULL, flags);
}

/* Encodes text and compares; frees. */
#define assert_ids(t, text, flags, ...)                           \
    do {                                                          \
        const int32_t want_[] = {__VA_ARGS__};                    \
        struct token_list got_ = encode(t, text, flags);          \
        assert_int_equal(got_.n, sizeof want_ / sizeof want_[0]); \
        assert_memory_equal(got_.ids, want_, sizeof want_);       \
        token_list_free(&got_);                                   \
    } while (0)

#endif
