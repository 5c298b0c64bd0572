/* What the files of filters share. filters.c has the table and those on single values, filters_seq.c those on
 * sequences, filters_text.c those on texts. */
#ifndef SLUICE_CHAT_FILTERS_H
#define SLUICE_CHAT_FILTERS_H

#include "chat/call.h"

/* A filter with bound arguments, as struct builtin's call. */
#define FILTER(name)     struct value name(struct vm *vm, struct value self, const struct value *a)
#define FILTER_RAW(name) struct value name(struct vm *vm, struct value self, const struct args *args)

FILTER(filter_batch);
FILTER(filter_dictsort);
FILTER(filter_first);
FILTER(filter_groupby);
FILTER(filter_items);
FILTER(filter_join);
FILTER(filter_last);
FILTER(filter_list);
FILTER(filter_max);
FILTER(filter_min);
FILTER(filter_reverse);
FILTER(filter_slice);
FILTER(filter_sort);
FILTER(filter_sum);
FILTER(filter_unique);
FILTER_RAW(filter_map);
FILTER_RAW(filter_select);
FILTER_RAW(filter_reject);
FILTER_RAW(filter_selectattr);
FILTER_RAW(filter_rejectattr);

FILTER(filter_center);
FILTER(filter_filesizeformat);
FILTER(filter_indent);
FILTER(filter_replace);
FILTER(filter_striptags);
FILTER(filter_title);
FILTER(filter_trim);
FILTER(filter_truncate);
FILTER(filter_urlencode);
FILTER(filter_wordcount);
FILTER(filter_wordwrap);
FILTER(filter_xmlattr);

/* Reads a whole string as a number, as Python's float(s); false if it is none. */
bool parse_float(const struct jstr *s, double *out);

#endif
