/* GET /tokenizer_info: what a client needs to know of the tokenizer without its files. */
#ifndef SLUICE_API_TOKENIZER_INFO_H
#define SLUICE_API_TOKENIZER_INFO_H

#include "api/model.h"

void tokenizer_info_write(const struct api_model *m, struct str *out);

#endif
