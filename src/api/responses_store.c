#include "api/responses_store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "api/salt.h"
#include "base/mem.h"

#define N_BUCKETS 4096

/* One allocation's worth of bookkeeping is counted too, so that many tiny answers are bounded as well. */
struct kept {
    struct kept *chain;         /* the next in its bucket */
    struct kept *newer, *older; /* by use */
    char *id, *conversation, *body;
    size_t conversation_len, body_len, bytes;
};

struct response_store {
    pthread_mutex_t mutex; /* held for copies and links, never while JSON is parsed */
    size_t max_bytes, bytes;
    struct kept *buckets[N_BUCKETS];
    struct kept *newest, *oldest;
};

struct response_store *response_store_create(size_t max_bytes)
{
    struct response_store *s = mem_zalloc(1, sizeof *s);
    s->max_bytes = max_bytes;
    pthread_mutex_init(&s->mutex, NULL);
    return s;
}

static void kept_free(struct kept *k)
{
    free(k->id);
    free(k->conversation);
    free(k->body);
    free(k);
}

void response_store_free(struct response_store *s)
{
    if (!s)
        return;
    for (struct kept *k = s->newest, *next; k; k = next) {
        next = k->older;
        kept_free(k);
    }
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

/* Ids may be the clients' choice: a keyed hash, so that none can fill one bucket. */
static struct kept **bucket(struct response_store *s, const char *id)
{
    uint64_t digest[2];
    salt_digest(id, strlen(id), digest);
    return &s->buckets[digest[0] % N_BUCKETS];
}

/* Where the pointer to it is, or to where it would be. */
static struct kept **find(struct response_store *s, const char *id)
{
    struct kept **at = bucket(s, id);
    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->chain;
    return at;
}

static void unlink_use(struct response_store *s, struct kept *k)
{
    *(k->newer ? &k->newer->older : &s->newest) = k->older;
    *(k->older ? &k->older->newer : &s->oldest) = k->newer;
    k->newer = k->older = NULL;
}

static void link_newest(struct response_store *s, struct kept *k)
{
    k->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = k;
    s->newest = k;
}

static void drop(struct response_store *s, struct kept *k)
{
    *find(s, k->id) = k->chain;
    unlink_use(s, k);
    s->bytes -= k->bytes;
    kept_free(k);
}

void response_store_put(struct response_store *s, const char *id, struct str *conversation,
                        const struct str *body)
{
    struct kept *k = mem_zalloc(1, sizeof *k);
    k->id = mem_strdup(id);
    k->conversation_len = conversation->len;
    k->conversation = str_take(conversation);
    k->body_len = body->len;
    k->body = mem_strndup(str_text(body), body->len);
    k->bytes = sizeof *k + strlen(id) + k->conversation_len + k->body_len + 128;
    pthread_mutex_lock(&s->mutex);
    struct kept *before = *find(s, id);
    if (before)
        drop(s, before);
    if (k->bytes > s->max_bytes) {
        kept_free(k);
    } else {
        while (s->bytes + k->bytes > s->max_bytes)
            drop(s, s->oldest);
        struct kept **at = bucket(s, id);
        k->chain = *at;
        *at = k;
        link_newest(s, k);
        s->bytes += k->bytes;
    }
    pthread_mutex_unlock(&s->mutex);
}

/* Copies one text of a response; false if it is not there. */
static bool copy(struct response_store *s, const char *id, bool body, struct str *out)
{
    pthread_mutex_lock(&s->mutex);
    struct kept *k = *find(s, id);
    if (k) {
        unlink_use(s, k);
        link_newest(s, k);
        str_add(out, body ? k->body : k->conversation, body ? k->body_len : k->conversation_len);
    }
    pthread_mutex_unlock(&s->mutex);
    return k != NULL;
}

json_t *response_store_conversation(struct response_store *s, const char *id)
{
    struct str text = {0};
    json_t *list = NULL;
    if (s && copy(s, id, false, &text))
        list = json_loadb(str_text(&text), text.len, JSON_ALLOW_NUL, NULL);
    str_free(&text);
    return list;
}

bool response_store_body(struct response_store *s, const char *id, struct str *out)
{
    return s && copy(s, id, true, out);
}
