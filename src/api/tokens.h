/* POST /tokenize and /detokenize: the tokenizer by itself. No limit on the length, as clients measure
 * prompts with it. */
#ifndef SLUICE_API_TOKENS_H
#define SLUICE_API_TOKENS_H

#include <jansson.h>

#include "api/errors.h"
#include "api/model.h"

int api_tokenize(const struct api_model *m, const json_t *body, struct str *out, struct api_error *e);
/* The number of tokens that the prompt of a chat body has. */
int api_count_chat(const struct api_model *m, const json_t *body, size_t *n, struct api_error *e);
int api_detokenize(const struct api_model *m, const json_t *body, struct str *out, struct api_error *e);

#endif
