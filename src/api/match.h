/* Finding marks such as "</think>" in text that is still arriving. The text may end inside one: then it is
 * too early to say. */
#ifndef SLUICE_API_MATCH_H
#define SLUICE_API_MATCH_H

#include <stdbool.h>
#include <stddef.h>

enum match {
    MATCH_NO,
    MATCH_PART, /* all that is there fits: wait for more */
    MATCH_YES
};

#define MATCH_MAX_BLANKS 64 /* between the tags of a mark; bounds what is held back, and read again */

struct cursor {
    const char *text; /* [len] */
    size_t len, at;
};

/* Steps over `literal`, or says why not (and stays, for MATCH_NO). */
enum match match_literal(struct cursor *c, const char *literal);
/* Steps over at most MATCH_MAX_BLANKS blanks. */
void match_blanks(struct cursor *c);
bool is_blank(char c);

#endif
