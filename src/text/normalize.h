/* What a tokenizer does to a text before it cuts it: Unicode normal forms, replacements. */
#ifndef SLUICE_TEXT_NORMALIZE_H
#define SLUICE_TEXT_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"

#define NORMALIZER_MAX_STEPS 8

enum normalize_kind { NORMALIZE_UNICODE, NORMALIZE_REPLACE, NORMALIZE_PREPEND };

struct normalizer {
    struct normalize_step {
        enum normalize_kind kind;
        bool compose, compat; /* UNICODE: NFC, NFKC compose; NFKC, NFKD take compatibility forms apart */
        struct str from,
            to; /* REPLACE: every `from` by `to`; PREPEND: `to` before a text that is not empty */
    } steps[NORMALIZER_MAX_STEPS];
    int n;
};

/* Longer strings are not replaced by any model, and are refused so that the search may be the simple one. */
#define REPLACE_MAX_BYTES 64

/* Appends text [len] to *out, every `from` (1 … REPLACE_MAX_BYTES bytes) in it as `to`. */
void replace_all(const char *text, size_t len, const struct str *from, const struct str *to, struct str *out);

void normalizer_free(struct normalizer *n);
/* Appends a step, to be filled in; NULL and *e when there are too many. */
struct normalize_step *normalizer_add(struct normalizer *n, enum normalize_kind kind, struct err *e);

/* Replaces *out by text [len], valid UTF-8, normalised. `first` false leaves out PREPEND: text is the
 * continuation of another. Linear in len, but for sorting runs of combining marks. */
void normalizer_run(const struct normalizer *n, const char *text, size_t len, bool first, struct str *out);

#endif
