/* What clients of llama.cpp's server ask for beside the OpenAI API. */
#ifndef SLUICE_API_LLAMACPP_H
#define SLUICE_API_LLAMACPP_H

#include <jansson.h>

#include "api/errors.h"
#include "api/model.h"

/* POST /tokenize {"content", "add_special", "parse_special", "with_pieces"} -> {"tokens": […]} */
int llamacpp_tokenize(const struct api_model *m, const json_t *body, struct str *out, struct api_error *e);
/* POST /apply-template: a chat body -> {"prompt": the text that its template makes} */
int llamacpp_apply_template(const struct api_model *m, const json_t *body, struct str *out,
                            struct api_error *e);
/* GET /props: what the server serves, and how much of it. */
void llamacpp_props(const struct api_model *m, struct str *out);

#endif
