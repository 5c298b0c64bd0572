/* JSON text as it arrives: a byte at a time, with nothing kept but the open brackets, so that a model's JSON
 * can be passed on while it is still being written. Strings may hold raw control characters, which models
 * write and JSON forbids; whoever passes them on escapes them. */
#ifndef SLUICE_API_JSON_SCAN_H
#define SLUICE_API_JSON_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

#define JSON_SCAN_DEPTH 128

enum scan_state {
    SCAN_VALUE,        /* a value must begin */
    SCAN_VALUE_OR_END, /* behind [ */
    SCAN_KEY_OR_END,   /* behind { */
    SCAN_KEY,          /* behind a comma in an object */
    SCAN_COLON,
    SCAN_NEXT, /* a value ended: a comma or the closing bracket */
    SCAN_STRING,
    SCAN_ESCAPE,  /* behind a backslash */
    SCAN_HEX,     /* in \uXXXX */
    SCAN_NUMBER,  /* ends only with the byte behind it */
    SCAN_LITERAL, /* true, false, null */
    SCAN_DONE     /* the outermost value ended */
};

struct json_scan {
    enum scan_state state;
    int depth;                              /* open brackets */
    uint64_t objects[JSON_SCAN_DEPTH / 64]; /* which of them are braces */
    bool is_key;                            /* the string is a key */
    int hex;                                /* digits to come */
    int number;                             /* where in a number */
    const char *literal;                    /* what is left of it */
};

void json_scan_init(struct json_scan *s);
/* False when c cannot stand here (or brackets are nested too deep): the scan is as it was before. */
bool json_scan_byte(struct json_scan *s, char c);
/* Appends the shortest end that makes a value of what came, with all brackets below `depth` closed. */
void json_scan_complete(const struct json_scan *s, int depth, struct str *out);

/* Appends bytes as they stand in a JSON string: quotes, backslashes and control characters escaped, the rest
 * as it is, so that halves of characters pass too. */
void json_escape(struct str *out, const char *bytes, size_t n);

#endif
