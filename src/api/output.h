/* From token ids to the text a client may see. One pipeline serves streams and whole answers, so the joined
 * deltas of a stream equal the whole text by construction:
 *
 *   ids -> detokenizer (whole characters) -> stop strings (hold back what may become one) -> delta
 *
 * The text is scanned byte by byte: the stop string that is complete first wins, whatever way the tokens cut
 * it; of two that end at the same byte the longer. Held back is only the longest end of the text that could
 * still become a stop string, and it is released when the answer ends otherwise. */
#ifndef SLUICE_API_OUTPUT_H
#define SLUICE_API_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"
#include "text/tokenizer.h"

struct stop_string {
    char *text; /* [len] */
    size_t len; /* >= 1 */
};

struct output {
    struct detokenizer detok;
    const struct stop_string *stops; /* [n_stops], borrowed */
    int n_stops;
    bool include_stop; /* the stop string itself is given out too */
    int min_tokens;    /* stop strings that end within so many tokens do not count */
    int n_tokens;      /* added so far */
    struct str fresh;  /* scratch: text of the newest token */
    struct str held;   /* the end of the text, not given out yet */
};

void output_init(struct output *o, const struct tokenizer *t, bool skip_special,
                 const struct stop_string *stops, int n_stops, bool include_stop, int min_tokens);
void output_free(struct output *o);

/* Adds a token and appends the text that is now certain to *delta. Returns the index of the stop string that
 * it completed (then the answer is over: add nothing more), or -1. */
int output_add(struct output *o, int32_t id, struct str *delta);

/* Counts a token whose text is not shown (the EOS that ended the answer). */
void output_skip(struct output *o);

/* The answer ended without a stop string: appends what is held back. */
void output_finish(struct output *o, struct str *delta);

#endif
