/* Between tool_calls.c and the formats. */
#ifndef SLUICE_API_TOOL_FORMAT_H
#define SLUICE_API_TOOL_FORMAT_H

#include "api/tool_calls.h"

/* What a format finds in the text. */
void tool_text(struct tool_calls *t, const char *text, size_t len, struct parts *out);
void tool_open(struct tool_calls *t, const char *name, size_t len, struct parts *out);
void tool_arguments(struct tool_calls *t, const char *text, size_t len, struct parts *out);
void tool_member_done(struct tool_calls *t); /* the arguments given so far end with a whole member */
void tool_close(struct tool_calls *t);
bool tool_calling(const struct tool_calls *t); /* between tool_open and tool_close */
/* The tool's function object, or NULL if there is none of that name. */
const json_t *tool_find(const struct tool_calls *t, const char *name, size_t len);

/* Each format: takes from text [len] what is certain and returns how much that was; the rest will come again
 * with more behind it. t->end says whether more can come. */
size_t tool_xml_take(struct tool_calls *t, const char *text, size_t len, struct parts *out);
size_t tool_json_take(struct tool_calls *t, const char *text, size_t len, struct parts *out);
/* The text ended, and all of it was taken. */
void tool_xml_end(struct tool_calls *t, struct parts *out);
void tool_json_end(struct tool_calls *t, struct parts *out);

/* <tool_call> and blanks, then the beginning of a call. */
enum match tool_xml_begins(const struct tool_calls *t, struct cursor *c, struct cursor *name);
enum match tool_hermes_begins(struct cursor *c);

/* tool_values.c: text into JSON by a schema. */
#define TYPE_NULL    1u
#define TYPE_INTEGER 2u
#define TYPE_NUMBER  4u
#define TYPE_BOOLEAN 8u
#define TYPE_OBJECT  16u
#define TYPE_ARRAY   32u
#define TYPE_STRING  64u
/* What the schema of a function's parameter allows; TYPE_STRING where it does not say. */
unsigned tool_value_types(const json_t *function, const char *key, size_t len);
/* Appends the value as the first of the types that fits: null, integer, number, boolean, object, array,
 * string. */
void tool_value_write(unsigned types, const char *text, size_t len, struct str *out);
/* Could a text that begins so still be null? */
bool tool_value_may_be_null(const char *text, size_t len);

#endif
