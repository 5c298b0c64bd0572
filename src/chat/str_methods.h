/* The methods of str. Filters of the same names use them too. */
#ifndef SLUICE_CHAT_STR_METHODS_H
#define SLUICE_CHAT_STR_METHODS_H

#include "chat/call.h"

extern const struct builtin str_methods[]; /* ends with a nameless entry */

/* (key, value) tuples of a dict, [d->n] */
const struct value *dict_pairs(struct vm *vm, const struct dict *d);

const struct jstr *str_upper(struct vm *vm, const struct jstr *s);
const struct jstr *str_lower(struct vm *vm, const struct jstr *s);
const struct jstr *str_capitalize(struct vm *vm, const struct jstr *s);
/* count < 0: all */
const struct jstr *str_replace(struct vm *vm, const struct jstr *s, const struct jstr *old,
                               const struct jstr *new, wide_int count);
const struct jstr *str_center(struct vm *vm, const struct jstr *s, wide_int width, const struct jstr *fill);
/* A list of lines, without their ends unless `keep`. */
struct value str_splitlines(struct vm *vm, const struct jstr *s, bool keep);
/* Runs of what is not white space, as a list; at most `most` splits if that is not negative. */
struct value str_split_space(struct vm *vm, const struct jstr *s, wide_int most);
/* Whether s has letters and all of them are lower (upper) case. */
bool str_all_case(struct vm *vm, const struct jstr *s, bool upper);
/* A list of strings under construction. */
struct str_list {
    struct value *items; /* [n], room for cap */
    size_t n, cap;
};
void str_list_add(struct vm *vm, struct str_list *l, const struct jstr *s);

#endif
