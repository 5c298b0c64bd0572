/* The bounds of the template interpreter. A template comes with a model file and its context with a request:
 * neither is trusted, so each kind of growth (text, nesting, work, memory) has a limit and a clear error.
 * Shipped templates stay far below all of them: the longest is under 100 KiB, nests 20 deep and takes some
 * hundred steps a message. */
#ifndef SLUICE_CHAT_LIMITS_H
#define SLUICE_CHAT_LIMITS_H

#define JINJA_MAX_SOURCE  ((size_t)1 << 20)   /* bytes of template */
#define JINJA_MAX_NESTING 150                 /* blocks, parentheses and operators inside each other */
#define JINJA_MAX_PARSED  ((size_t)256 << 20) /* bytes of syntax tree */
#define JINJA_MAX_DEPTH   1000                /* expressions, blocks and macro calls active at once */
#define JINJA_MAX_STEPS   10000000 /* nodes evaluated, items visited, 32-byte pieces of text copied */
#define JINJA_PROBE_STEPS 200000   /* the same for one probe of what a template can do */
#define JINJA_MAX_OUTPUT  ((size_t)64 << 20)  /* bytes of text under construction */
#define JINJA_MAX_VALUES  ((size_t)256 << 20) /* bytes of values of one render */
#define JINJA_MAX_RANGE   100000              /* items of range(), as in Jinja's sandbox */

#endif
