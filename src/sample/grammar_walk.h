/* Walking the vocabulary's trie through the automaton: the costly half of making masks (grammar_mask.c is the
 * other). Private to src/sample. */
#ifndef SLUICE_SAMPLE_GRAMMAR_WALK_H
#define SLUICE_SAMPLE_GRAMMAR_WALK_H

#include "sample/grammar_internal.h"

/* Something that happens at a node of the trie after so many turns of a counted rule. */
struct node_turns {
    uint32_t node;
    int32_t turns;
};

struct node_list {
    struct node_turns *e; /* [n] */
    int n, cap;
};

/* What the bytes down to a node leave: mostly one state of which a byte is the only way on. */
struct level {
    bool simple;   /* `only` and nothing else; otherwise items[first … first + n) of the simulation */
    uint32_t tail; /* with simple: this state of the same frame and count too, NO_STATE = none */
    struct item only;
    int first, n;
    int n_frames, n_returns;
    int need; /* turns that must be left at least, NO_NEED = only in the tail */
};

struct walk {
    const struct grammar *g;
    const struct grammar_vocab *v;
    int words;
    /* Results. Of a counted rule's state (`counted`) they say how many turns they need. */
    uint32_t *bits;         /* [words] the tokens that are allowed; without the plain ones if `plain` */
    int32_t *need;          /* [n_ids] where bits is set: turns that must be left, at least */
    int n_tokens;           /* bits set */
    struct node_list exits; /* where the rule of the state ends */
    struct node_list tails; /* tokens that end in the rule's tail, after so many turns */
    bool counted;
    bool plain;     /* counted, and plain tokens are allowed by their numbers of characters */
    bool endless;   /* nothing follows the rule's end: it is the root, so exits do not matter */
    int max_height; /* rules open at a time below the state's own, at most */
    /* Scratch, made once: the system gives memory to it only as it is written. */
    struct sim sim;
    int32_t *base; /* turns done when a frame was opened, at least */
    struct level levels[257];
    uint64_t *stays; /* [n_states] the classes of bytes that lead back to the state, STAYS_KNOWN with them */
    int32_t *row_of; /* [n_states] -1 = none */
    uint32_t (*rows)[256]; /* [n_rows of cap_rows] */
    int n_rows, cap_rows;
    int64_t nodes;
};

enum { NO_NEED = INT32_MAX };

void walk_init(struct walk *w, const struct grammar *g, const struct grammar_vocab *v);
void walk_free(struct walk *w);

/* Walks from a state of which nothing else is known: below the root of the trie (nodes NULL) by the state's
 * own bytes, not by its calls; or below each of nodes [n], at which it is reached, by all ways. -1 if it
 * takes too much work. */
int walk_state(struct walk *w, uint32_t state, const uint32_t *nodes, int n);
/* Walks from where a matcher is, with its own open rules: bits only. */
int walk_matcher(struct walk *w, const struct grammar_matcher *m);

#endif
