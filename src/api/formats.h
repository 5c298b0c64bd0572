/* Which parsers the output of a model needs: named on the command line, or seen in what its template prints.
 */
#ifndef SLUICE_API_FORMATS_H
#define SLUICE_API_FORMATS_H

#include "api/reasoning.h"
#include "api/tool_calls.h"
#include "chat/template.h"

/* For the option table: "auto|none|…". */
#define REASONING_PARSERS "auto|none|qwen3|deepseek_r1"
#define TOOL_STRICTNESS   "off|function|parameter"
#define TOOL_PARSERS      "auto|none|qwen3_coder|qwen3_xml|hermes|llama3_json"

/* By name, one of those above (NULL = "auto"). "auto" asks the template, which may be NULL. */
enum reasoning_format reasoning_format_choose(const char *name, const struct chat_template *t);
enum tool_format tool_format_choose(const char *name, const struct chat_template *t);
const char *reasoning_format_name(enum reasoning_format f);
const char *tool_format_name(enum tool_format f);

#endif
