/* repetition_detection: ends an answer that goes in circles. A pattern of p tokens, min_size <= p <=
 * max_size, that stands min_count times in a row at the end of the answer is one.
 *
 * For each p a counter says for how many tokens the answer has equalled itself p tokens before, so a token
 * costs one comparison a size, whatever the answer. */
#ifndef SLUICE_API_REPETITION_H
#define SLUICE_API_REPETITION_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/errors.h"

#define API_MAX_PATTERN_SIZE 512 /* tokens */

struct repetition_rule {
    int max_size, min_size, min_count; /* max_size 0 = off */
};

struct repetition {
    struct repetition_rule rule;
    int *runs; /* [max_size + 1] */
};

/* The field of a request body; absent = off. */
int repetition_rule_read(struct repetition_rule *r, const json_t *body, struct api_error *e);

void repetition_init(struct repetition *r, const struct repetition_rule *rule);
void repetition_free(struct repetition *r);
/* Sees the newest of ids [n]. True if the answer repeats itself now. */
bool repetition_add(struct repetition *r, const int32_t *ids, int n);

#endif
