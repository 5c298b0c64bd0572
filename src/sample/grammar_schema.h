/* What the parts of JSON Schema share: grammar_schema.c makes nodes of schemas, grammar_types.c of those of
 * one type, grammar_merge.c makes one schema of two that must both hold. Private to src/sample. */
#ifndef SLUICE_SAMPLE_GRAMMAR_SCHEMA_H
#define SLUICE_SAMPLE_GRAMMAR_SCHEMA_H

#include "sample/grammar_json.h"

enum {
    SCHEMA_MAX_DEPTH = 64,
    SCHEMA_MAX_WORK = 20000, /* schemas seen and merged, in all */
};

struct schema {
    struct grammar_builder *b;
    const json_t *root;
    struct json_parts *parts;
    bool open_objects;
    struct str path; /* of the schema being read: "#/properties/a" */
    int depth, work;
    json_t *made; /* merged schemas, kept until the end */
    struct {
        const json_t *target;
        const char *path;
        grammar_node rule;
    } * refs; /* [n_refs] targets of $ref, each a rule; the first n_read have a body */
    int n_refs, n_read, cap_refs;
};

/* Begins and ends reading schemas of one document: between the two, schema_node. */
void schema_open(struct schema *x, struct grammar_builder *b, const json_t *root,
                 const struct grammar_json_options *o);
void schema_close(struct schema *x);

grammar_node schema_node(struct schema *x, const json_t *s);
/* The schema at path/key. */
grammar_node schema_under(struct schema *x, const char *key, const json_t *s);
/* What s says of values of one type. */
grammar_node schema_of_type(struct schema *x, const json_t *s, const char *type);
/* What is inside the quotes of a string, unescaped; -1 without error if s says nothing of it. */
grammar_node schema_string_content(struct schema *x, const json_t *s);
/* A string without quotes, of which s may say nothing but the length; -1 without error if not even that. It
 * has no "<" unless s has a pattern with one, so that it never holds a tag. */
grammar_node schema_string_in_tag(struct schema *x, const json_t *s);
/* Matches nothing. */
grammar_node schema_never(struct schema *x);

/* Adds "/key" (and "/i") to the path; the result is given to schema_leave. */
size_t schema_enter(struct schema *x, const char *key);
size_t schema_enter_index(struct schema *x, const char *key, size_t i);
void schema_leave(struct schema *x, size_t before);

/* In a merged schema: the patterns of both, as an array. No schema from outside has such a key. */
#define SCHEMA_PATTERNS "\x01patterns"

/* Sets the builder's error to "schema at PATH: …" unless there is one. Always -1. */
grammar_node schema_fail(struct schema *x, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Adds the path to an error that came from below. */
void schema_locate(struct schema *x);
/* true, with the error set, if s has a keyword that is not supported. */
bool schema_refuse(struct schema *x, const json_t *s, const char *key);
/* One more step of work; false (with the error set) when there were too many. */
bool schema_step(struct schema *x);
/* Does this keyword say anything about validity? */
bool schema_is_constraint(const char *keyword);
/* The schema that a $ref names (borrowed), NULL with the error set. */
const json_t *schema_resolve(struct schema *x, const json_t *ref);
/* s without one keyword; kept by x. */
const json_t *schema_without(struct schema *x, const json_t *s, const char *key);
/* s and the members of its allOf as one schema: kept by x, NULL with the error set. */
const json_t *schema_all(struct schema *x, const json_t *s);
/* A schema for what both a and b allow: kept by x, NULL with the error set. Keywords that cannot be combined
 * are refused. */
const json_t *schema_merge(struct schema *x, const json_t *a, const json_t *b);

#endif
