/* What the two halves of the compiler share: grammar_nfa.c makes nondeterministic automata of the tree,
 * grammar_compile.c makes the final one of those. Private to src/sample. */
#ifndef SLUICE_SAMPLE_GRAMMAR_COMPILE_H
#define SLUICE_SAMPLE_GRAMMAR_COMPILE_H

#include "sample/grammar_internal.h"

enum { COMPILE_MAX_WORK = 30000000 }; /* steps of all subset constructions */

struct nfa_edge {
    int32_t to, next;
    uint8_t lo, hi;
};

struct nfa_link {
    int32_t to, next, rule; /* rule -1: nothing is consumed; else an automaton's rule is called */
};

/* A rule of the automaton under construction. */
struct out_rule {
    grammar_node body;
    int32_t min, max; /* counted */
    bool counted, nullable;
    int32_t source;     /* the builder's rule, -1 = the root or a repetition */
    int32_t start, end; /* states of the NFA */
    grammar_node tail;  /* what follows the last turn, -1 = nothing */
    int32_t tail_start, tail_end;
};

struct compiler {
    struct grammar_builder *b;
    struct err *e;
    bool failed;
    /* NFA of all rules */
    int32_t *edge_head, *link_head; /* [n_states] */
    struct nfa_edge *edges;
    struct nfa_link *links;
    int n_states, n_edges, n_links, cap_edge_head, cap_link_head, cap_edges, cap_links;
    struct out_rule *rules;
    int n_rules, cap_rules;
    int32_t *out_of;  /* [builder's rules] its out_rule, -1 = none yet */
    bool *inlined;    /* [builder's rules] */
    int32_t *counted; /* [builder's nodes] the counted rule of a repetition, -1 = none yet */
    /* the automaton */
    struct grammar_state *states;
    struct grammar_edge *out_edges;
    struct grammar_call *out_calls;
    int n_out, n_out_edges, n_out_calls, cap_out, cap_out_edges, cap_out_calls;
    int64_t work;
};

/* Marks with `mark` all states that can be reached without consuming anything, and lists them. */
struct closure {
    uint32_t *marks; /* [n_states] */
    uint32_t mark;
    int32_t *list; /* [n_states] */
    int n;
};

/* Says that the grammar is too large. Always -1. */
int compile_fail_size(struct compiler *c, const char *what, int limit);
/* Makes the NFA of the root, which becomes rule 0, and of all rules that it calls. */
void nfa_build(struct compiler *c, grammar_node root);

void closure_begin(struct closure *k);
/* Adds `state` and what it reaches. */
void closure_add(struct compiler *c, struct closure *k, int32_t state);
/* Finds the rules that can match nothing. */
void nfa_find_nullable(struct compiler *c, struct closure *k);

#endif
