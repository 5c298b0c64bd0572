/* What an answer is held to while its tokens are chosen: a grammar, words that must not occur, a thought that
 * must end in time. The sampler asks it before each choice and tells it the result. One a request, made at
 * submission; afterwards it allocates nothing.
 *
 * Where only one text can come next its tokens are known without a model: they are *forced*. The scheduler
 * appends them at once, and the next step computes them in one piece. Private to src/sample. */
#ifndef SLUICE_SAMPLE_CONSTRAINT_H
#define SLUICE_SAMPLE_CONSTRAINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sluice.h"

struct constraint;

size_t constraint_bytes(const struct sluice_sampling *p); /* what it will take */
/* Copies what it needs of *p and keeps a reference to its grammar. NULL if p constrains nothing. */
struct constraint *constraint_create(const struct sluice_sampling *p);
void constraint_free(struct constraint *c);

/* The token that must come next, whatever the logits; -1 = they choose. */
int32_t constraint_forced(const struct constraint *c);
/* The answer is complete and nothing may follow. */
bool constraint_done(const struct constraint *c);
/* The mask and the request's other fields left no token at all: true if the answer may end here, else false
 * with constraint_error. */
bool constraint_no_token(struct constraint *c);
/* Sets the logits [vocab] of what may not come next to minus infinity; bits [vocab / 32, rounded up] is
 * scratch. `stoppable`: the stop ids are allowed where the answer may end. false if the grammar cannot be
 * followed any further: constraint_error says why. */
bool constraint_mask(struct constraint *c, float *logits, int vocab, bool stoppable, uint32_t *bits);
/* Goes on by the token. false, with constraint_error, if that is no way (a grammar too ambiguous). */
bool constraint_accept(struct constraint *c, int32_t token);
const char *constraint_error(const struct constraint *c);

#endif
