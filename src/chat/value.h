/* The values of a running template: Python's None, bool, int, float, str, list, tuple, dict, range and views,
 * Jinja's Undefined, namespace, macro and loop objects. A value is 24 bytes and passed by copy; what it
 * points to lives in an arena and, apart from namespaces, loops and iterators, never changes (the sandbox
 * forbids list.append and its like), so copies share it freely.
 *
 * A string knows where its bytes come from: `literal` for all of them alike, or a parallel array of marks
 * when they are mixed. 1 = from the context (what a user wrote), 0 = from the template. Every operation on
 * strings carries the marks along. */
#ifndef SLUICE_CHAT_VALUE_H
#define SLUICE_CHAT_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vm;
struct args;
struct builtin;
struct node;
struct scope;
struct jstr;

/* Python's ints are unbounded; ours have 128 bits and overflow is an error. */
typedef __int128 wide_int __attribute__((aligned(8)));
#define WIDE_MAX ((wide_int)(~(unsigned __int128)0 >> 1))
#define WIDE_MIN (-WIDE_MAX - 1)

enum value_type {
    VAL_MISSING, /* not a value: a parameter not given, a variable not set */
    VAL_UNDEFINED,
    VAL_NONE,
    VAL_BOOL,
    VAL_INT,
    VAL_FLOAT,
    VAL_STR,
    VAL_BYTES, /* only to print what str.encode gives */
    VAL_LIST,
    VAL_TUPLE,
    VAL_DICT,
    VAL_VIEW, /* dict.keys(), .values(), .items() */
    VAL_RANGE,
    VAL_ITER, /* generators: what map, select and the like return; can be read once */
    VAL_NAMESPACE,
    VAL_MACRO,
    VAL_FUNCTION,
    VAL_METHOD,
    VAL_LOOP,
    VAL_CYCLER,
    VAL_JOINER,
};

struct value {
    enum value_type type;
    union {
        bool b;
        wide_int i;
        double f;
        const struct jstr *str;            /* STR, BYTES */
        const struct seq *seq;             /* LIST, TUPLE, VIEW */
        const struct dict *dict;           /* DICT */
        struct dict *ns;                   /* NAMESPACE: its attributes */
        const struct range *range;         /* RANGE */
        struct iter *iter;                 /* ITER */
        const struct undefined *undef;     /* UNDEFINED: why; may be NULL */
        const struct macro *macro;         /* MACRO */
        const struct function *function;   /* FUNCTION */
        const struct bound_method *method; /* METHOD */
        struct loop *loop;                 /* LOOP */
        struct cycler *cycler;             /* CYCLER */
        struct joiner *joiner;             /* JOINER */
    };
};

struct jstr {
    const char *bytes; /* [len] UTF-8, not NUL-terminated */
    size_t len;
    const uint8_t *marks; /* [len], or NULL: all bytes are `literal` */
    bool literal;
    bool markup;   /* went through `safe` or `escape`: `+` escapes what it is joined with */
    int64_t chars; /* characters; -1 = not counted */
};

struct seq {
    const struct value *items; /* [n] */
    size_t n;
    const char *kind; /* VIEW: "dict_keys" …; TUPLE of groupby: "group"; else NULL */
};

struct range {
    wide_int start, step;
    wide_int stop;
    size_t n;
};

struct iter {
    const struct value *items; /* [n] */
    size_t n, pos;
};

/* Insertion-ordered. Small ones are searched in order; larger ones through an open-addressing index. */
struct dict_entry {
    struct value key, value;
    uint64_t hash;
};
struct dict {
    struct dict_entry *entries; /* [n], room for cap */
    size_t n, cap;
    uint32_t *index; /* [n_index] entry + 1, 0 = free; NULL while n <= DICT_SMALL */
    size_t n_index;  /* a power of two */
};

struct undefined {
    const char *hint; /* the whole message, or NULL: made of the two below */
    const char *of;   /* type of the object that lacks it; NULL = a variable */
    struct value name;
};

struct function {
    const char *name;
    struct value (*call)(struct vm *vm, const struct args *args);
};

struct bound_method {
    struct value self;
    const struct builtin *def;
};

struct cycler {
    const struct value *items; /* [n] */
    size_t n, pos;
};

struct joiner {
    struct value sep;
    bool used;
};

struct loop {
    const struct value *items; /* [n] */
    size_t n, index0;
    int depth0;
    struct value changed;         /* the tuple that loop.changed saw last, or MISSING */
    const struct node *recursive; /* the for node, if marked so */
    struct scope *scope;          /* in which the loop stands */
};

struct macro {
    const struct node *def;
    struct scope *scope; /* in which it was defined */
    const char *name;
};

static inline struct value val_none(void)
{
    return (struct value){.type = VAL_NONE};
}
static inline struct value val_bool(bool b)
{
    return (struct value){.type = VAL_BOOL, .b = b};
}
static inline struct value val_int(wide_int i)
{
    return (struct value){.type = VAL_INT, .i = i};
}
static inline struct value val_float(double f)
{
    return (struct value){.type = VAL_FLOAT, .f = f};
}
static inline struct value val_str(const struct jstr *s)
{
    return (struct value){.type = VAL_STR, .str = s};
}
static inline struct value val_missing(void)
{
    return (struct value){.type = VAL_MISSING};
}
static inline bool val_is_seq(struct value v)
{
    return v.type == VAL_LIST || v.type == VAL_TUPLE;
}
static inline bool val_is_integer(struct value v) /* bool is an int, as in Python */
{
    return v.type == VAL_INT || v.type == VAL_BOOL;
}
static inline bool val_is_number(struct value v)
{
    return val_is_integer(v) || v.type == VAL_FLOAT;
}
static inline wide_int val_integer(struct value v)
{
    return v.type == VAL_BOOL ? (wide_int)v.b : v.i;
}
static inline double val_double(struct value v)
{
    return v.type == VAL_FLOAT ? v.f : (double)val_integer(v);
}

/* Undefined, with what to say when it is used: `hint`, or "'name' is undefined" when of is NULL, or
 * "'of object' has no attribute 'name'". The strings must outlive the render. */
struct value val_undefined(struct vm *vm, const char *hint, const char *of, struct value name);
/* Fails the render with the undefined's message. */
_Noreturn void val_fail_undefined(struct vm *vm, struct value v);

/* Copies items. */
struct value val_tuple(struct vm *vm, const struct value *items, size_t n);
/* These take over items, which the caller must not change any more. */
struct value val_list_of(struct vm *vm, const struct value *items, size_t n);
struct value val_iter_of(struct vm *vm, const struct value *items, size_t n);

/* Python's name of v's type: "str", "NoneType", "dict" … */
const char *val_type_name(struct value v);
bool val_truthy(struct value v);
bool val_equal(struct vm *vm, struct value a, struct value b);
/* The sign of a - b for a and b that Python can order; else fails as `a op b` would. */
int val_compare(struct vm *vm, struct value a, struct value b, const char *op);
/* len(v); fails where Python would. */
size_t val_length(struct vm *vm, struct value v);
bool val_is_iterable(struct value v);
/* The items that iterating over v gives: an array that must not be changed; *n of them. An iterator is used
 * up. Fails if v cannot be iterated over. */
const struct value *val_items(struct vm *vm, struct value v, size_t *n);
/* `item in container` */
bool val_contains(struct vm *vm, struct value container, struct value item);
/* A stable sort of items[n] by keys[n], ascending or (still stable) descending, in place. */
void val_sort(struct vm *vm, struct value *items, struct value *keys, size_t n, bool reverse);

struct dict *dict_new(struct vm *vm, size_t cap);
/* d[key] = value; an equal key keeps its place and its first spelling. Fails if key cannot be hashed. */
void dict_set(struct vm *vm, struct dict *d, struct value key, struct value value);
/* The value under key, or NULL. Fails if key cannot be hashed. */
const struct value *dict_get(struct vm *vm, const struct dict *d, struct value key);
const struct value *dict_get_str(struct vm *vm, const struct dict *d, const struct jstr *key);
bool val_hashable(struct value v);
static inline struct value val_dict(const struct dict *d)
{
    return (struct value){.type = VAL_DICT, .dict = d};
}

#endif
