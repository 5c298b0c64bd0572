/* OpenAI-style messages made ready for a chat template. Requests come in many dialects; templates are written
 * for one: string contents (or lists of text parts, where the template loops over them), tool-call arguments
 * as objects, reasoning as `reasoning_content`. */
#ifndef SLUICE_CHAT_MESSAGES_H
#define SLUICE_CHAT_MESSAGES_H

#include <jansson.h>

#include "base/error.h"
#include "chat/template.h"

/* Returns a new array, or NULL with an error (ERR_INVALID) that names the place, such as
 * "messages[3].content[1].type". `messages` is not changed; parts of it are shared by reference.
 *
 * - role: system, developer, user, assistant or tool. What developers say becomes (part of) the system
 * message at the front.
 * - content: a string, null (for the empty string), or an array of text parts ("text", "input_text",
 * "output_text", "refusal"; a bare string counts as one). Parts are joined with newlines unless
 * caps->content_parts; a tool's always. "thinking" parts of the assistant become its reasoning. Images,
 * audio, video and files are refused.
 * - tool_calls: arguments given as a JSON string become the object it holds, and {} if it holds none. An
 * empty list is dropped.
 * - reasoning and reasoning_content: either is given to the template under both names.
 * - Fields that are null are dropped, unknown ones are kept. Bytes that are not UTF-8 become U+FFFD. */
json_t *chat_messages_prepare(const json_t *messages, const struct chat_caps *caps, struct err *e);

#endif
