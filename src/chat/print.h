/* Python's str(), repr() and json.dumps() of values, appended to the text under construction. */
#ifndef SLUICE_CHAT_PRINT_H
#define SLUICE_CHAT_PRINT_H

#include "chat/value.h"

void vm_put_str(struct vm *vm, struct value v);
void vm_put_repr(struct vm *vm, struct value v);
/* str(v) as a string; v itself if it is one. */
const struct jstr *val_to_str(struct vm *vm, struct value v);

/* The shortest text that reads back as f, laid out as Python's repr: 1.0, 1e+22, nan. */
void vm_put_float(struct vm *vm, double f);
void vm_put_int(struct vm *vm, wide_int i);
/* Digits of i in base 2 … 16 at the end of buf[JINJA_INT_DIGITS], without sign; returns where they begin. */
#define JINJA_INT_DIGITS 130
const char *print_digits(char *buf, unsigned __int128 i, unsigned base, bool upper);

struct json_style {
    bool ascii, sort_keys;
    const struct jstr *indent;             /* one level's worth, or NULL: all on one line */
    const struct jstr *item_sep, *key_sep; /* between items, between key and value */
};
void vm_put_json(struct vm *vm, struct value v, const struct json_style *style);

#endif
