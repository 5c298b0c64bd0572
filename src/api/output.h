/* From token ids to what a client may see. One pipeline serves streams and whole answers, so the joined
 * deltas of a stream equal the whole answer by construction:
 *
 *   ids -> detokenizer (whole characters) -> stop strings (hold back what may become one)
 *       -> thought and rest (reasoning.h) -> text and calls of tools (tool_calls.h) -> parts
 *
 * For stop strings the text is scanned byte by byte: the one that is complete first wins, whatever way the
 * tokens cut it; of two that end at the same byte the longer. Held back is only the longest end of the text
 * that could still become a stop string, and it is released when the answer ends otherwise. */
#ifndef SLUICE_API_OUTPUT_H
#define SLUICE_API_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "api/parts.h"
#include "api/reasoning.h"
#include "api/tool_calls.h"
#include "base/str.h"
#include "text/tokenizer.h"

struct stop_string {
    char *text; /* [len] */
    size_t len; /* >= 1 */
};

/* What is looked for in the text of an answer. Zeros: nothing, all is content. */
struct output_parsing {
    bool reasoning;     /* a reasoning parser is set: usage counts its tokens */
    enum thought start; /* where the answer begins */
    enum tool_format format;
    const json_t *tools; /* borrowed; see tool_calls.h */
    bool only_first_call;
    bool constrained; /* a grammar holds the answer: marks count only where it puts them */
    bool must_call;   /* the answer is calls: its content is "" and not null */
    bool named_call;  /* … of the tool that the request names: its finish_reason stays "stop" */
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
    struct str text;   /* scratch: behind the stop strings */
    struct str rest;   /* scratch: behind the thought */

    bool must_call, named_call;
    bool parses; /* thoughts or calls are looked for: a token may leave nothing to show for a while */
    struct reasoning reasoning;
    struct tool_calls calls;
    size_t n_bytes;           /* of text, as detokenized */
    size_t *starts;           /* [n_starts] where the tokens begin that the reasoning parser still holds */
    int n_starts, cap_starts; /* … */
    int n_reasoning;          /* tokens of the thought, without its marks */
    int n_thought;            /* tokens that lead up to the text: the thought with its marks */
};

void output_init(struct output *o, const struct tokenizer *t, bool skip_special,
                 const struct stop_string *stops, int n_stops, bool include_stop, int min_tokens,
                 const struct output_parsing *parsing);
void output_free(struct output *o);

/* Adds a token and appends to *delta what is now certain. Returns the index of the stop string that it
 * completed (then the answer is over: add nothing more), or -1. */
int output_add(struct output *o, int32_t id, struct parts *delta);

/* Counts a token whose text is not shown (the EOS that ended the answer). */
void output_skip(struct output *o);

/* The answer ended without a stop string: appends what is held back. */
void output_finish(struct output *o, enum text_end end, struct parts *delta);

#endif
