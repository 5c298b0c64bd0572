#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void err_fill(struct err *e, enum err_code code, const char *fmt, ...)
{
    if (!e)
        return;
    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
}

void err_fill_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return;
    char prefix[sizeof e->msg];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(prefix, sizeof prefix - 2, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    size_t len = strlen(prefix), room = sizeof e->msg - 1;
    memcpy(prefix + len, ": ", 2);
    len += 2;
    size_t kept = strnlen(e->msg, room - (len < room ? len : room));
    memmove(e->msg + len, e->msg, kept);
    memcpy(e->msg, prefix, len);
    e->msg[len + kept] = '\0';
}
