/* JSON as parts of a grammar: white space, strings, any value, and the texts of given values. Shared by the
 * schemas of one builder, so that the masks of, say, the inside of a string are made once. Private to
 * src/sample. */
#ifndef SLUICE_SAMPLE_GRAMMAR_JSON_H
#define SLUICE_SAMPLE_GRAMMAR_JSON_H

#include "sample/grammar_internal.h"

struct json_parts {
    struct grammar_builder *b;
    grammar_node ws;           /* white space, or nothing */
    grammar_node comma, colon; /* with white space around */
    grammar_node character;    /* one character inside a string, escapes too */
    grammar_node string_tail;  /* the rest of a string: characters and the closing quote */
    grammar_node string, value, object;
    grammar_node any_number, any_integer;
    /* what they were made for */
    bool no_whitespace;
    char *whitespace_pattern;
    struct json_parts *next;
};

/* The parts of this builder for these options (NULL = defaults), made when first asked for. */
struct json_parts *json_parts_of(struct grammar_builder *b, const struct grammar_json_options *o);
void json_parts_free(struct json_parts *p);

/* The text of a value, with white space where it may be. Strings are written as they are, with only the
 * escapes that must be. Nesting is limited by the caller. */
grammar_node json_value_node(struct json_parts *p, const json_t *v);
/* A string in quotes. */
grammar_node json_string_node(struct grammar_builder *b, const char *text, size_t len);
/* A string in quotes that is none of names [n]. */
grammar_node json_other_key(struct json_parts *p, const char *const *names, int n);
/* Any one character. */
grammar_node json_any_char(struct grammar_builder *b);

/* {min, max} of item, with comma between; max -1 = no end. */
grammar_node json_list(struct json_parts *p, grammar_node item, int min, int max);

#endif
