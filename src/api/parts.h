/* What an answer is made of: a thought, text, calls of tools. The parsers append to it. A stream clears it
 * after each event, so it holds what is new; a whole answer lets it grow. */
#ifndef SLUICE_API_PARTS_H
#define SLUICE_API_PARTS_H

#include <stdbool.h>

#include "base/str.h"

struct call_part {
    int index;            /* of the call in the answer */
    bool opens;           /* the call is new: `name` is set */
    struct str name;      /* of the tool */
    struct str arguments; /* what is new of the JSON text */
};

struct parts {
    struct str reasoning, content;
    struct call_part *calls; /* [n_calls] */
    int n_calls, cap_calls;
};

void parts_free(struct parts *p);
void parts_clear(struct parts *p);
bool parts_empty(const struct parts *p);
void parts_open_call(struct parts *p, int index, const char *name, size_t len);
void parts_add_arguments(struct parts *p, int index, const char *text, size_t len);

#endif
