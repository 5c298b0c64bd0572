/* Private to src/sample/grammar*.c: the syntax tree that every front end builds, and the automaton that it is
 * compiled to.
 *
 * Tree: nodes in an array, named by index. Front ends (regex, EBNF, JSON Schema, tags) only make nodes; the
 * compiler alone knows automata.
 *
 * Automaton: rules, each a finite automaton whose states have edges over bytes and calls of other rules. A
 * rule may be *counted*: its automaton is the body of a repetition, gone through min to max times; the count
 * lives in the matcher, so that {0,2000} costs no more states than {0,1}. */
#ifndef SLUICE_SAMPLE_GRAMMAR_INTERNAL_H
#define SLUICE_SAMPLE_GRAMMAR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/str.h"
#include "sample/grammar.h"

/* --- limits -------------------------------------------------------------------------------------- */

enum {
    GRAMMAR_MAX_NODES = 400000,
    GRAMMAR_MAX_PARTS =
        1000000, /* children, edges of graphs, ranges of classes; bytes of literals: 4 times */
    GRAMMAR_MAX_NODE_DEPTH = 1200,
    GRAMMAR_MAX_RULES = 20000,
    GRAMMAR_MAX_NFA = 400000,    /* states, and twice as many edges */
    GRAMMAR_MAX_STATES = 250000, /* of the automaton, and 8 times as many edges */
    GRAMMAR_MAX_REPEAT = 1000000000,
    GRAMMAR_MAX_DEPTH = 400,   /* rules open at a time in a matcher: the nesting of an answer */
    GRAMMAR_MAX_ITEMS = 512,   /* ways that a matcher follows at a time */
    GRAMMAR_MAX_FRAMES = 2048, /* open rules of all those ways, and closed ones not yet collected */
    GRAMMAR_MAX_RETURNS = 4096,
    GRAMMAR_NO_END = INT32_MAX, /* the max of a repetition without one */
};

/* --- sets of characters -------------------------------------------------------------------------- */

struct char_range {
    uint32_t lo, hi;
};

/* Zero-initialise; free with charset_free. Sorted and disjoint only after charset_normalise. */
struct charset {
    struct char_range *r; /* [n] */
    int n, cap;
};
void charset_free(struct charset *s);
void charset_add(struct charset *s, uint32_t lo, uint32_t hi);
void charset_add_ranges(struct charset *s, const struct char_range *r, int n);
/* Sorts, merges, and leaves out what is no character (surrogates, beyond U+10FFFF). */
void charset_normalise(struct charset *s);
void charset_negate(struct charset *s); /* normalises first */
/* out = a and b, both normalised. */
void charset_intersect(struct charset *out, const struct char_range *a, int na, const struct char_range *b,
                       int nb);
bool charset_has(const struct char_range *r, int n, uint32_t c);
/* Adds the characters of a Unicode general category ("L", "Lu"); false if there is none of that name. */
bool charset_add_category(struct charset *s, const char *name, size_t len);
/* Adds the other case of every letter. */
void charset_fold_case(struct charset *s);

/* --- the tree ------------------------------------------------------------------------------------ */

enum node_kind {
    NODE_LITERAL, /* bytes[first … first + n) */
    NODE_CLASS,   /* one character of ranges[first … first + n) */
    NODE_SEQ,     /* kids[first … first + n) */
    NODE_ALT,
    NODE_REPEAT, /* kids[first], min to max times */
    NODE_RULE,   /* rules[first] */
    NODE_GRAPH,  /* edges[first … first + n) among states 0 … min-1; from state 0 to state 1 */
    NODE_BEGIN,  /* ^ and $: only inside grammar_regex.c, which takes them out */
    NODE_END,
};

struct node {
    enum node_kind kind;
    int32_t first, n;
    int32_t min, max;
    uint32_t size; /* states it will need, about */
    uint16_t depth;
    bool has_begin, has_end;
};

struct graph_edge {
    int32_t from, to;
    grammar_node label;
};

struct rule_def {
    char *name; /* may be NULL */
    grammar_node body;
    bool keep; /* call it, never copy it: the masks of its states are shared by all its callers */
};

struct grammar_builder {
    struct node *nodes; /* [n_nodes] */
    int32_t *kids;
    struct char_range *ranges;
    struct graph_edge *edges;
    struct rule_def *rules;
    struct str bytes;
    int n_nodes, n_kids, n_ranges, n_edges, n_rules;
    int cap_nodes, cap_kids, cap_ranges, cap_edges, cap_rules;
    struct json_parts *json; /* grammar_json.h */
    struct err e;            /* the first error; code ERR_NONE while there is none */
};

/* Makes room for `more` elements; grows by half. */
void grammar_grow(void *array, int *cap, int n, int more, size_t size);
#define GROW(array, n, cap, more) grammar_grow(&(array), &(cap), n, more, sizeof *(array))

/* Sets the builder's error unless it has one already. Always -1. */
#define builder_fail(b, ...) ((b)->e.code == ERR_NONE ? err_set(&(b)->e, __VA_ARGS__) : -1)
#define builder_failed(b)    ((b)->e.code != ERR_NONE)

grammar_node grammar_class(struct grammar_builder *b, const struct char_range *r, int n);
/* From state 0 to state 1; the edges are copied. */
grammar_node grammar_graph(struct grammar_builder *b, int n_states, const struct graph_edge *edges, int n);
grammar_node grammar_seq2(struct grammar_builder *b, grammar_node x, grammar_node y);
grammar_node grammar_seq3(struct grammar_builder *b, grammar_node x, grammar_node y, grammar_node z);
grammar_node grammar_alt2(struct grammar_builder *b, grammar_node x, grammar_node y);
grammar_node grammar_optional(struct grammar_builder *b, grammar_node x);
/* A rule whose body is at hand, kept apart from its callers (struct rule_def). */
grammar_node grammar_kept(struct grammar_builder *b, const char *name, grammar_node body);

/* The regular expression as a set of plain texts. `search`: it need only occur somewhere in the text. */
grammar_node grammar_regex_node(struct grammar_builder *b, const char *pattern, size_t len, bool search);
/* Texts of both x and y, which have no rules in them. */
grammar_node grammar_intersect(struct grammar_builder *b, grammar_node x, grammar_node y);
/* The inside of the JSON strings that stand for the texts of x, which has no rules in it. */
grammar_node grammar_json_escaped(struct grammar_builder *b, grammar_node x);

/* Numbers as JSON writes them, within bounds. */
struct number_form {
    bool integer;
    bool has_min, has_max, open_min, open_max; /* open: the bound itself is left out */
    char min[64], max[64];                     /* plain decimals: "-12.5" */
    char multiple_of[64];                      /* "" = of nothing */
};
/* Parses a JSON number into a plain decimal without exponent; false if it needs more than 63 characters. */
bool number_decimal(const json_t *n, char out[64]);
/* -1 and the builder's error if it would be too large; *reason-less: the caller prefixes the path. */
grammar_node grammar_number(struct grammar_builder *b, const struct number_form *f);
/* The regular expression of a string format ("date-time"), NULL for one that is not known. */
const char *grammar_format_regex(const char *name);

/* --- the automaton ------------------------------------------------------------------------------- */

struct grammar_edge {
    uint32_t to;
    uint8_t lo, hi;
};

struct grammar_call {
    uint32_t rule, to;
};

enum state_flags {
    STATE_FINAL = 1, /* the rule (or one turn of a counted rule) may end here */
    STATE_SIMPLE =
        2, /* a byte is the only way on: calls nothing, and does not end (nothing follows the root) */
    STATE_STOP = 4,  /* no edges and no calls */
    STATE_TABLE = 8, /* at most one edge for each byte */
    STATE_TAIL = 16, /* of a counted rule: after the last turn */
};

struct grammar_state {
    uint32_t first_edge, first_call; /* the next state's are the ends */
    uint32_t rule;
    uint16_t height; /* rules that must still be opened at a time, at least, to reach an end of this rule */
    uint8_t flags;
};

struct grammar_rule_info {
    uint32_t start;
    uint32_t tail;    /* where a counted rule goes on after the last turn, NO_STATE = it ends then */
    int32_t min, max; /* of a counted rule */
    uint16_t height;
    bool counted, nullable;
};

struct mask_cache;

struct grammar {
    struct grammar_state *states; /* [n_states + 1] */
    struct grammar_edge *edges;
    struct grammar_call *calls;
    struct grammar_rule_info *rules; /* [n_rules]; rule 0 is the root, and not counted */
    int n_states, n_edges, n_calls, n_rules;
    struct grammar_vocab *vocab;
    struct mask_cache *cache;
    atomic_int refs;
};

#define NO_STATE UINT32_MAX

/* --- simulation: shared by the matcher and by the making of masks -------------------------------- */

/* One way through the grammar: a state, the open rule (frame) that it belongs to, and how many turns of that
 * rule, if it is counted, are done. */
struct item {
    uint32_t state;
    int32_t frame;
    int32_t count;
};

/* An open rule. Callers that open the same rule at the same place share a frame, and it has a list of them.
 */
struct frame {
    uint32_t rule;
    int32_t returns; /* first in sim.returns, -1 = none */
    int32_t depth;
};

struct frame_return {
    struct item to;
    int32_t next;
};

struct sim {
    const struct grammar *g;
    struct item *items; /* [cap_items] this place's from `begin` on */
    struct frame *frames;
    struct frame_return *returns;
    int n_items, n_frames, n_returns;
    int cap_items, cap_frames, cap_returns;
    int begin;      /* first item of the place under construction */
    int here;       /* frames from here on were opened at this place */
    bool unknown;   /* frame 0 is a rule whose callers and count are not known: see grammar_mask.c */
    bool ended;     /* out: frame 0 was completed */
    bool lost;      /* out: something did not fit and was left out */
    int max_height; /* out: the largest depth + height of an item, raised only */
    int64_t work;   /* out: steps made */
    /* with `unknown`: the counts at which frame 0 was completed, and room for them */
    int32_t *exits;
    int n_exits, cap_exits;
};

/* Starts the next place: items are added behind those there are. */
static inline void sim_open(struct sim *s)
{
    s->begin = s->n_items;
    s->here = s->n_frames;
    s->ended = false;
    s->n_exits = 0;
}
void sim_add(struct sim *s, struct item it);
/* Follows calls and ends of rules from the items of this place until nothing is new. */
void sim_close(struct sim *s);
/* Adds the items that items [n] lead to by byte c. */
void sim_step(struct sim *s, const struct item *items, int n, uint8_t c);

struct grammar_matcher {
    struct grammar *g;
    struct sim sim; /* its items are those of the current place, in items[slot] */
    bool can_end;
    int slot;
    struct item items[3][GRAMMAR_MAX_ITEMS]; /* the current place, and two to try bytes with */
    struct frame frames[GRAMMAR_MAX_FRAMES];
    struct frame_return returns[GRAMMAR_MAX_RETURNS];
    int32_t frame_map[GRAMMAR_MAX_FRAMES], return_map[GRAMMAR_MAX_RETURNS]; /* scratch of the collector */
};

struct grammar *grammar_compile(struct grammar_builder *b, grammar_node root, struct err *e);

/* --- masks --------------------------------------------------------------------------------------- */

/* The vocabulary's trie in preorder: node i's subtree is i … skip[i] - 1. Node 0 is the root. Tokens in the
 * order of their bytes are in the order of their nodes too, so those of a subtree are order[first[i] …
 * first[skip[i]]).
 *
 * Most text is read by a state that stays where it is. Two things spare such a state most of the walk: for
 * each node the classes of bytes below it, so that a whole subtree is allowed at once; and for counted rules
 * the plain tokens, those of whole characters that a JSON string holds as they are, by their numbers of
 * characters. */
struct grammar_vocab {
    int n_ids, n_nodes, n_tokens, max_len;
    grammar_bytes_fn *bytes;
    void *arg;
    uint8_t *byte, *depth; /* [n_nodes] */
    uint32_t *skip;        /* [n_nodes] */
    int32_t *token;  /* [n_nodes] the token that ends here; -2 - id if there are more in `same`; VOCAB_NONE */
    int32_t *same;   /* [n_ids] next token with the same bytes, -1 = none */
    int32_t *order;  /* [n_tokens] */
    uint32_t *first; /* [n_nodes + 1] */
    uint64_t *below; /* [n_nodes] classes (vocab_class) of the bytes below a node */
    bool *mixed;     /* [n_nodes] not all tokens of the subtree are plain */
    uint32_t *plain; /* [words] the set of plain tokens */
    int32_t *by_chars; /* [n_plain] plain tokens in the order of their numbers of characters */
    int32_t *upto;     /* [max_chars + 2] how many have less than i characters */
    int n_plain, max_chars;
};

/* Classes of bytes: a bit each. Letters share some, punctuation has one for each. */
enum { CLASS_NOT_ASCII = 60, CLASS_MALFORMED = 61 /* what is below is no UTF-8, read as whole characters */ };

static inline int vocab_class(unsigned byte)
{
    if (byte >= 0x80)
        return CLASS_NOT_ASCII;
    if (byte < 0x20 || byte == 0x7F)
        return byte == '\n' ? 0 : byte == '\t' || byte == '\r' ? 1 : 2;
    if (byte >= '0' && byte <= '9')
        return 3;
    if ((byte | 32) >= 'a' && (byte | 32) <= 'z')
        return (byte & 32 ? 4 : 12) + (int)((byte | 32) - 'a') / 4;
    /* 33 others: 20 … 52 */
    return 20 + (int)(byte < '0'   ? byte - 0x20
                      : byte < 'A' ? byte - 0x2A
                      : byte < 'a' ? byte - 0x44
                                   : byte - 0x5E);
}

enum { VOCAB_NONE = -1 };

static inline bool vocab_plain_char(unsigned c)
{
    return c >= 0x20 && c != '"' && c != '\\' && c != '<' && c != '[' && c != '{' && c != 0x7F;
}

/* The first token that ends at a node and the next after id, -1 = none. */
static inline int32_t vocab_first(const struct grammar_vocab *v, uint32_t node)
{
    int32_t id = v->token[node];
    return id < VOCAB_NONE ? -2 - id : id;
}
static inline int32_t vocab_next(const struct grammar_vocab *v, uint32_t node, int32_t id)
{
    return v->token[node] < VOCAB_NONE ? v->same[id] : -1;
}

struct mask_cache *mask_cache_create(const struct grammar *g, const struct grammar_vocab *v, size_t limit);
void mask_cache_free(struct mask_cache *c);
int mask_compute(struct mask_cache *c, const struct grammar_matcher *m, uint32_t *bits);
void mask_warm(struct mask_cache *c, double seconds);
void mask_size(struct mask_cache *c, struct grammar_size *out);

#endif
