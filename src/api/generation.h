/* A request while the engine works on it: one choice an answer, each with its engine request and its output
 * pipeline. generation_advance is called whenever the engine may have made tokens; it never waits. What the
 * client receives is written by an answer_writer, one for each protocol (chat.c, completion.c). */
#ifndef SLUICE_API_GENERATION_H
#define SLUICE_API_GENERATION_H

#include <stdbool.h>

#include "api/errors.h"
#include "api/model.h"
#include "api/output.h"
#include "api/request.h"
#include "sluice.h"

struct generation;

struct choice {
    int index; /* prompt * n + i */
    const struct prompt *prompt;
    struct sluice_request *request;
    struct output output;
    int max_tokens;                  /* as submitted */
    struct sluice_progress progress; /* as last seen */
    int n_tokens;                    /* consumed; the engine may have made more behind a stop string */
    int n_sent;                      /* of them, those that an event has covered */
    bool opened;                     /* its first event was written */
    const char *finish;              /* finish_reason; NULL while it runs */
    int32_t stop_token;              /* stop_reason: a token id, or -1 */
    const struct stop_string *stop;  /* stop_reason: a string, or NULL */
    struct parts parts;              /* so far, or since the last event of a stream */
    struct repetition repetition;
    size_t offset; /* characters before the next token: completions' text_offset */
};

/* What is new in one event of a stream. */
struct delta {
    const struct parts *parts;
    int first, n; /* the tokens it came from: first … first + n - 1 */
};

/* One protocol. All append to *out; events are complete ("data: …\n\n"). */
struct answer_writer {
    const char *path; /* of its route, for the log */
    /* before a choice's first event, or NULL */
    void (*open)(const struct generation *g, const struct choice *c, struct str *out);
    void (*event)(struct generation *g, struct choice *c, const struct delta *d, struct str *out);
    /* the last events of a stream; with g->error.status they say what went wrong */
    void (*end)(struct generation *g, struct str *out);
    void (*body)(struct generation *g, struct str *out); /* the whole answer, not streamed */
    /* what the client of a request in the background gets at once; its body() keeps the answer, or the error
     */
    void (*accepted)(struct generation *g, struct str *out);
};
extern const struct answer_writer chat_writer, completion_writer;

/* Told of tokens as they are seen. Times are clock_now(). */
struct generation_observer {
    void *arg;
    void (*first_token)(void *arg, double seconds);    /* since the request arrived */
    void (*gap)(void *arg, double seconds, int count); /* between tokens of an answer, `count` times */
};

struct generation {
    const struct api_model *model;
    struct api_request *request; /* owned */
    const struct answer_writer *writer;
    double arrived;         /* when the HTTP request was complete */
    struct choice *choices; /* [n_choices] */
    int n_choices, n_open;  /* n_open still run */
    struct api_error error; /* status != 0: the engine failed */
};

/* Submits all choices of a request, which it owns from then on. NULL and *e (and the request freed) when
 * the engine refuses. */
struct generation *generation_start(const struct api_model *m, struct api_request *r, double arrived,
                                    struct api_error *e);

/* Takes in what the engine has made. Streams: appends events to *out as they come, the last of them [DONE].
 * Otherwise appends nothing until all is there, then the JSON body; or, if g->error.status is set, nothing at
 * all. Returns true when the answer is complete. */
bool generation_advance(struct generation *g, const struct generation_observer *o, struct str *out);

void generation_cancel(
    struct generation *g); /* the engine drops it before its next step; advance still ends */
void generation_free(struct generation *g);

struct usage {
    int64_t prompt, completion, cached, reasoning;
};
struct usage generation_usage(const struct generation *g);

#endif
