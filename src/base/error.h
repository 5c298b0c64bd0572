/* Errors are values: a function that can fail takes a `struct err *`, fills it and returns non-zero
 * (or NULL). The message is written for the person who must act on it: what is wrong, where (file and
 * tensor, field and limit), and what to do. */
#ifndef SLUICE_BASE_ERROR_H
#define SLUICE_BASE_ERROR_H

enum err_code {
    ERR_NONE = 0,
    ERR_INVALID,     /* the input is malformed or out of range */
    ERR_NOT_FOUND,   /* a file, tensor or name that should exist does not */
    ERR_UNSUPPORTED, /* well formed, but something this build cannot do */
    ERR_NO_MEMORY,   /* the memory plan or an allocation does not fit */
    ERR_IO,          /* the operating system refused: open, read, bind … */
    ERR_LIMIT,       /* a bound set by the operator was passed */
    ERR_BUSY,        /* nothing is wrong with the input, but there is no room for it now: try again later */
    ERR_RAISED,      /* a chat template called raise_exception: msg is its text alone */
};

struct err {
    enum err_code code;
    char msg[1000];
};

/* Fills *e (which may be NULL) with a formatted message, truncated to fit. Always -1, so that `return
 * err_set(…)` ends a failing function; a macro, so that the compiler knows it too and does not think the
 * function went on. */
#define err_set(e, code, ...) (err_fill(e, code, __VA_ARGS__), err_minus_one())
void err_fill(struct err *e, enum err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the message already in *e: adds the file or field as the error travels up. Always
 * -1. */
#define err_prefix(e, ...) (err_fill_prefix(e, __VA_ARGS__), err_minus_one())
void err_fill_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static inline int err_minus_one(void)
{
    return -1;
}

#endif
