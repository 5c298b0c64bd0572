/* The grammars of a model. Clients send the same schema again and again, so the latest are kept, by the text
 * that they were compiled from, within a bound in bytes; and so are the masks that they have worked out. The
 * trie of the vocabulary, which all share, is made when the first is asked for. Any worker thread may call
 * these; they may wait for each other, and the engine waits for none. */
#ifndef SLUICE_API_GRAMMAR_CACHE_H
#define SLUICE_API_GRAMMAR_CACHE_H

#include "base/str.h"
#include "sample/grammar.h"
#include "text/tokenizer.h"

struct grammar_cache;

/* For `vocab` rows of logits. At most `limit` bytes of grammars are kept; the tokenizer must outlive it. */
struct grammar_cache *grammar_cache_create(const struct tokenizer *t, int vocab, size_t limit);
/* All requests with a grammar of it must have ended. */
void grammar_cache_free(struct grammar_cache *c);

/* NULL and *e if there is no memory. */
struct grammar_vocab *grammar_cache_vocab(struct grammar_cache *c, struct err *e);
/* The grammar that was compiled from the text, with a reference; NULL = none is kept. */
struct grammar *grammar_cache_find(struct grammar_cache *c, const struct str *text);
/* Binds and keeps a new grammar, and returns it; or, if another worker was faster, that one's in its place.
 * NULL and *e (and g dropped) if there is no memory for the vocabulary. */
struct grammar *grammar_cache_add(struct grammar_cache *c, const struct str *text, struct grammar *g,
                                  struct err *e);

#endif
