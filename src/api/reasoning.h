/* The thought that models of the <think> families write before their answer, told apart from it.
 *
 * Whether the answer begins inside a thought is seen at the end of the prompt: the template may have opened
 * one (Qwen3.5), opened and closed an empty one (thinking switched off), or left it to the model. The blanks
 * around the marks belong to the format and are dropped. A call of a tool ends a thought that the model
 * forgot to close. */
#ifndef SLUICE_API_REASONING_H
#define SLUICE_API_REASONING_H

#include <stdint.h>

#include "api/match.h"
#include "base/str.h"

enum reasoning_format {
    REASONING_NONE,
    REASONING_THINK,       /* qwen3: <think>…</think>, begun by the prompt or by the model */
    REASONING_THINK_FIRST, /* deepseek_r1: the same, but the answer begins inside it if the prompt is silent
                            */
};

/* How an answer begins. */
enum thought {
    THOUGHT_NONE,     /* all is text */
    THOUGHT_MAY_OPEN, /* a <think> at its very start opens one */
    THOUGHT_OPEN
};

/* How the answer to a prompt begins. Tags count where the template wrote them (literal[i] == 0), and from
 * byte `own` on (the message that the answer is to continue; len = none). */
enum thought reasoning_start(enum reasoning_format f, const char *prompt, size_t len, const uint8_t *literal,
                             size_t own);

struct reasoning {
    enum { BEFORE, ENTERING, INSIDE, LEAVING, BEHIND, OFF } state;
    /* Does a call begin at text? NULL = calls are not looked for. */
    enum match (*call_begins)(const void *arg, const char *text, size_t len);
    const void *arg;
    /* The answer is held to a form, which begins behind the mark and two newlines at most: all of it counts.
     */
    bool exact;
    int newlines;      /* of those two, dropped */
    bool begun;        /* the thought has text: blanks are no longer its first ones */
    struct str held;   /* fed, undecided: the beginning of a mark */
    struct str blanks; /* dropped where the thought begins or ends, else given out */
    /* byte offsets in what was fed */
    size_t decided;    /* all before it has been given out or dropped */
    size_t begin, end; /* the thought without its marks; end = SIZE_MAX while it lasts */
    size_t over;       /* behind the closing mark; 0 = no thought (yet) */
};

void reasoning_init(struct reasoning *r, enum thought start);
void reasoning_free(struct reasoning *r);
/* Takes the next text; appends what is decided to *thought and to *rest. */
void reasoning_add(struct reasoning *r, const char *text, size_t len, struct str *thought, struct str *rest);
/* The answer ended: gives out what was held back. */
void reasoning_finish(struct reasoning *r, struct str *thought, struct str *rest);

#endif
