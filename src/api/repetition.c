#include "api/repetition.h"

#include <limits.h>
#include <stdlib.h>

#include "api/fields.h"
#include "base/mem.h"

int repetition_rule_read(struct repetition_rule *r, const json_t *body, struct api_error *e)
{
    const json_t *rule;
    int64_t max_size = 0, min_size = 0, min_count = 0;
    *r = (struct repetition_rule){0};
    int set = field_object(body, "repetition_detection", &rule, e);
    if (set <= 0)
        return set;
    if (field_int(rule, "max_pattern_size", &max_size, e) < 0 ||
        field_int(rule, "min_pattern_size", &min_size, e) < 0 ||
        field_int(rule, "min_count", &min_count, e) < 0)
        return -1;
    if (max_size == 0)
        return 0;
    if (min_size == 0)
        min_size = 1;
    if (max_size < 1 || max_size > API_MAX_PATTERN_SIZE || min_size < 1 || min_size > max_size)
        return api_bad_value(
            e, "repetition_detection", rule,
            "repetition_detection needs 1 <= min_pattern_size <= max_pattern_size <= %d (or max_pattern_size "
            "0, which switches it off)",
            API_MAX_PATTERN_SIZE);
    if (min_count < 2 || min_count > INT_MAX / API_MAX_PATTERN_SIZE)
        return api_bad_value(e, "repetition_detection", rule,
                             "repetition_detection needs a min_count from 2 to %d",
                             INT_MAX / API_MAX_PATTERN_SIZE);
    *r = (struct repetition_rule){(int)max_size, (int)min_size, (int)min_count};
    return 0;
}

void repetition_init(struct repetition *r, const struct repetition_rule *rule)
{
    r->rule = *rule;
    r->runs = rule->max_size ? mem_zalloc((size_t)rule->max_size + 1, sizeof *r->runs) : NULL;
}

void repetition_free(struct repetition *r)
{
    free(r->runs);
    r->runs = NULL;
}

bool repetition_add(struct repetition *r, const int32_t *ids, int n)
{
    bool repeats = false;
    for (int p = r->rule.min_size; r->runs && p <= r->rule.max_size && p < n; p++) {
        r->runs[p] = ids[n - 1] == ids[n - 1 - p] ? r->runs[p] + 1 : 0;
        repeats |= r->runs[p] >= p * (r->rule.min_count - 1);
    }
    return repeats;
}
