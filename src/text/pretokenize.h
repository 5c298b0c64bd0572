/* Pre-tokenization: cutting a text into pieces that merges never cross. */
#ifndef SLUICE_TEXT_PRETOKENIZE_H
#define SLUICE_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/str.h"

#define PRETOKENIZER_MAX_STEPS 8

/* What becomes of the matches of a pattern, and of what is between them. */
enum split_behavior {
    SPLIT_ISOLATED,             /* each is a piece */
    SPLIT_REMOVED,              /* matches are dropped */
    SPLIT_MERGED_WITH_PREVIOUS, /* a match belongs to the piece before it */
    SPLIT_MERGED_WITH_NEXT,     /* … after it */
    SPLIT_CONTIGUOUS,           /* neighbouring matches are one piece */
};

/* Steps in order; each cuts every piece of the one before. */
struct pretokenizer {
    struct split_step {
        struct pcre2_real_code_8 *code; /* NULL = no cut */
        enum split_behavior behavior;
        bool invert;       /* what is between matches counts as the matches */
        bool prefix_space; /* first puts a space before a piece that does not begin with one */
    } steps[PRETOKENIZER_MAX_STEPS];
    int n;
};

void pretokenizer_free(struct pretokenizer *p);
/* Appends a step. pattern (NULL = none) is a regular expression in the dialect of tokenizer.json
 * (Oniguruma's), or a string to be found as it is. NULL and *e if it cannot be compiled. */
struct split_step *pretokenizer_add(struct pretokenizer *p, const char *pattern, size_t len, bool is_regex,
                                    enum split_behavior behavior, struct err *e);

/* Memory of one encoding thread. */
struct pretokenizer_work {
    struct pcre2_real_match_context_8 *context;
    struct pcre2_real_jit_stack_8 *stack;
    struct pcre2_real_match_data_8 *data[PRETOKENIZER_MAX_STEPS];
    struct str prefixed[PRETOKENIZER_MAX_STEPS];
};
void pretokenizer_work_free(struct pretokenizer_work *w);

/* Non-zero stops the cutting, and is what pretokenizer_split returns. */
typedef int piece_fn(void *arg, const char *piece, size_t len);

/* Calls fn for each piece of text [len], valid UTF-8, in order. Where a match passes PCRE2's limits on
 * backtracking (which no text does with the patterns of released models), the rest of the text is one piece.
 */
int pretokenizer_split(const struct pretokenizer *p, struct pretokenizer_work *w, const char *text,
                       size_t len, piece_fn *fn, void *arg);

#endif
