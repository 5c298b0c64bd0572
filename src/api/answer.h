/* Parts that the answers of several protocols share: usage, log-probabilities, token text. */
#ifndef SLUICE_API_ANSWER_H
#define SLUICE_API_ANSWER_H

#include "api/generation.h"

/* ,"usage":{…} (with nulls written out, or left out in a stream's chunk) */
void answer_write_usage(const struct generation *g, bool with_nulls, struct str *out);
/* ,"metrics":{…}: the times of a request with one answer, where the server is to tell them; else null with
 * with_nulls, or nothing. */
void answer_write_metrics(const struct generation *g, bool with_nulls, struct str *out);
/* "finish_reason":…,"stop_reason":…; "tool_calls" for an answer that the model ended itself with calls */
void answer_write_finish(const struct choice *c, struct str *out);
/* The end of a stream: the error if there was one, then [DONE]. */
void answer_write_end(const struct generation *g, struct str *out);
/* [{"token", "logprob", "bytes", "top_logprobs"}, …] of tokens first … first + n - 1; [] when none were asked
 * for. */
void answer_write_logprobs(const struct generation *g, const struct choice *c, int first, int n,
                           struct str *out);
/* A random number to name a part of an answer by. */
uint64_t answer_new_id(void);
/* The text of one token as log-probabilities show it: "token_id:17" where asked for. Clears *out first. */
void answer_token_text(const struct generation *g, int32_t id, struct str *out);
/* prompt_logprobs' value: [null, {"id": {"logprob", "rank", "decoded_token"}, …}, …], or null. */
void answer_write_prompt_logprobs(const struct generation *g, const struct choice *c, struct str *out);
/* The number of characters (not bytes) of valid UTF-8. */
size_t answer_characters(const char *text, size_t len);

#endif
