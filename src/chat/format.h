/* Python's two ways to format: "%s" % values, and "{}".format(values). */
#ifndef SLUICE_CHAT_FORMAT_H
#define SLUICE_CHAT_FORMAT_H

#include "chat/call.h"

/* s % value: a tuple gives the arguments, a dict the named ones, anything else is the one argument. */
struct value format_percent(struct vm *vm, const struct jstr *s, struct value value);
/* s.format(…) */
struct value format_braces(struct vm *vm, const struct jstr *s, const struct args *args);

#endif
