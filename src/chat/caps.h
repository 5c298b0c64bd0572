/* Between template.c and caps.c: rendering a parsed program, and probing it. */
#ifndef SLUICE_CHAT_CAPS_H
#define SLUICE_CHAT_CAPS_H

#include "chat/ast.h"
#include "chat/template.h"

/* chat_template_render with a budget of steps. On failure *out is empty. */
int program_render(const struct program *p, const json_t *context, int64_t now, int64_t steps,
                   struct chat_text *out, struct err *e);
void caps_probe(const struct program *p, struct chat_caps *caps);

#endif
