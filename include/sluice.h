/* libsluice: the engine as a library. Open a model (its memory is planned first), submit requests of token
 * ids, run steps, read tokens. The HTTP server and the command line are clients of this header; text and
 * chat templates live above it (src/text, src/chat).
 *
 * Threads: sluice_submit, sluice_cancel, sluice_stats and everything named sluice_request_* may be called
 * from any thread at any time and never wait for a step. sluice_step and sluice_wait belong to one thread,
 * the engine's (sluice_start makes one). No call takes ownership of its arguments. */
#ifndef SLUICE_H
#define SLUICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct sluice;
struct sluice_request;
struct model_file;

/* --- opening ------------------------------------------------------------------------------------ */

struct sluice_options {
    int threads;           /* 0 = one a CPU */
    const char *cpu_level; /* NULL = best, or "reference", "avx2", "avx512" */
    int max_model_len;     /* tokens of prompt + answer; 0 = the model's own, or what fits if that is less */
    int max_num_seqs; /* requests in one step, clamped with a warning to what fits; 0 = 128, or fewer: their
                         states and logits then take at most a quarter of what the weights leave */
    int max_num_batched_tokens; /* token budget of a step; 0 = 2048 */
    int long_prefill_threshold; /* cap of one prompt's tokens in a step that others share; 0 = none */
    int max_prefills;           /* prompts computed in one step; 0 = no cap */
    bool priority_scheduling;   /* lower `priority` first, instead of first come, first served */
    int max_queued;             /* requests that may wait; more are refused (ERR_BUSY). 0 = no bound */
    int max_queued_tokens;     /* prompt tokens that may wait to be computed; a prompt that would make it more
                                  is refused (ERR_BUSY) unless none wait. 0 = no bound */
    int block_size;            /* tokens a KV block; 0 = 16 */
    const char *trace_path;    /* write a timeline (Perfetto, chrome://tracing) to this file; NULL = none */
    size_t kv_cache_bytes;     /* 0 = from memory_utilization */
    double memory_utilization; /* share of RAM (or the cgroup's limit) for everything; 0 = 0.9 */
    const char *kv_dtype; /* "auto" (= NULL: float16), "bfloat16", "float16", "float32", "int8_per_token_head"
                             (8 bits and a scale a row); or bf16, fp16, fp32, int8 */
    const char *state_dtype,
        *conv_dtype;   /* of recurrent states and of what convolutions remember: "auto" (= NULL:
                          float32), "float32", "bfloat16" (rounded after every token) */
    const char *dtype; /* "auto" (= NULL), or the type that the model's matrices have, or "float32": then auto
                          for keys and values is the same. Weights are never converted */
    const char *quantization; /* encode matrices as they are loaded: "q8_0", "q6_k", "q4_k", "q4_0" or "q4_1";
                                 NULL = as in the file. Takes longer to load, and less memory */
    int num_kv_blocks;        /* exactly so many blocks in the pool, before kv_cache_bytes; 0 = as they say */
    bool no_prefix_cache;     /* compute every prompt whole */
    size_t state_cache_bytes; /* budget of kept recurrent states (hybrid models); 0 = a tenth of what is left
                                 after the weights */
    size_t swap_bytes;        /* host memory where preempted requests may leave what was computed, when that
                                 costs less than computing it again; 0 = none */
    bool mtp;                 /* also load the multi-token prediction head, where the file has one */
    /* What the prefix cache gives up goes to files in this directory and comes back from them; NULL = none.
     * kv_offload_bytes bounds them; 0 = 16 GiB, or half of the free disk. They hold the tokens of prompts. */
    const char *kv_offload_dir;
    uint64_t kv_offload_bytes;
    /* Called while weights load: done and total bytes. May be NULL. */
    void (*progress)(void *arg, size_t done, size_t total);
    void *progress_arg;
};

/* What the memory plan decided, in bytes unless said. */
struct sluice_plan {
    size_t weights, kv_pool, state, state_cache, scratch, logits, swap, offload, total, available;
    size_t bookkeeping; /* what is remembered of the pool's blocks, beside them */
    size_t kv_bytes_per_token, state_bytes_per_seq;
    size_t kv_bytes_per_token_8bit;                  /* as it would be with int8_per_token_head */
    const char *kv_dtype, *state_dtype, *conv_dtype; /* as options name them; NULL without recurrent state */
    double memory_utilization;                       /* that was granted */
    bool prefix_cache;
    int offload_blocks; /* staging slots for blocks on their way to disk; `offload` has all staging memory */
    int kv_blocks, block_size, state_snapshots, max_model_len, max_num_seqs, max_num_batched_tokens, threads;
};

/* Plans memory for the model in `file` and, if it fits, loads it. The file may be closed afterwards. On
 * failure NULL and *e; nothing is loaded when the plan does not fit, and the message says the largest setting
 * that would. */
struct sluice *sluice_open(const struct model_file *file, const struct sluice_options *o, struct err *e);
void sluice_close(struct sluice *s); /* stops the engine thread; outstanding requests end as aborted */
const struct sluice_plan *sluice_plan(const struct sluice *s);

struct sluice_info {
    const char *arch, *backend;  /* "qwen2", "cpu/avx512" */
    int n_layers, hidden, vocab; /* vocab = rows of logits: ids 0 … vocab-1 are valid */
    int64_t n_params;
};
const struct sluice_info *sluice_info(const struct sluice *s);

/* The plan and the description that sluice_open would come to, without loading: -1 and *e where it would be
 * refused. */
int sluice_plan_only(const struct model_file *file, const struct sluice_options *o, struct sluice_plan *plan,
                     struct sluice_info *info, struct err *e);

/* --- requests ------------------------------------------------------------------------------------ */

struct sluice_bias {
    int32_t id;
    float bias;
};

struct sluice_word {
    const int32_t *ids; /* [n], n >= 1 */
    int n;
};

/* sample/grammar.h */
struct grammar;
struct grammar_vocab;

struct sluice_sampling {
    float temperature;                         /* < 1e-5 = greedy (top_k, top_p, min_p ignored) */
    int top_k;                                 /* 0 = all */
    float top_p, min_p;                        /* 1 and 0 = off */
    float repetition_penalty;                  /* 1 = off; over prompt and answer */
    float presence_penalty, frequency_penalty; /* 0 = off; over the answer */
    uint64_t seed;                             /* the answer depends on (prompt, parameters, seed) alone */
    const struct sluice_bias *logit_bias;      /* [n_logit_bias] */
    int n_logit_bias;
    const int32_t *allowed_ids; /* [n_allowed_ids]; none = all */
    int n_allowed_ids;
    const int32_t *stop_ids; /* [n_stop_ids]: end the answer, EOS among them unless ignored by the caller */
    int n_stop_ids;
    /* What the answer must look like: a grammar bound to a vocabulary of all ids, which the request keeps a
     * reference to. Stop ids come only where it allows an end; the answer ends by itself where nothing may
     * follow. NULL = anything. */
    struct grammar *grammar;
    const struct sluice_word *bad_words; /* [n_bad_words] sequences that must not occur */
    int n_bad_words;
    /* A thought may have so many tokens: then thinking_end [n_thinking_end] (what closes it) is written. 0 =
     * no limit. */
    const int32_t *thinking_end;
    int n_thinking_end, thinking_budget;
    bool thinking_open; /* the answer begins inside it; else by <think>, if it does so at once */
    const struct grammar_vocab *texts; /* of the tokens, for thinking_end */
    int min_tokens;                    /* stop_ids are masked until so many tokens were made */
    int max_tokens;        /* >= 1, or 0 to score the prompt only; clamped to what max_model_len leaves */
    int n_logprobs;        /* -1 = none; k = the token's and the k most likely ones' log-probabilities */
    int n_prompt_logprobs; /* the same for each prompt token from the second on */
    const int32_t *logprob_ids; /* [n_logprobs] score these in place of the most likely ones; NULL = those */
    int priority;               /* lower goes first, under priority_scheduling */
    /* the prefix cache: prompts share only within equal salts (a digest of the tenant's; zeros = none) */
    uint64_t cache_salt[2];
    const int *borders; /* [n_borders] prompt positions where a message ends: good places to keep state */
    int n_borders;
};
/* Greedy, 16 tokens, nothing else. */
void sluice_sampling_init(struct sluice_sampling *p);

#define SLUICE_MAX_LOGPROBS    64
#define SLUICE_MAX_LOGPROB_IDS 128

enum sluice_finish {
    SLUICE_RUNNING = 0, /* or waiting */
    SLUICE_STOP,        /* the last token is one of stop_ids, or the grammar allows no more */
    SLUICE_LENGTH,      /* max_tokens or max_model_len reached */
    SLUICE_ABORTED,     /* cancelled, or the engine closed */
    SLUICE_ERROR,       /* the engine failed, or the grammar: sluice_request_error says why */
};

struct sluice_prob {
    int32_t id;
    float logprob; /* raw log-softmax, before penalties and temperature */
};

/* Queues a request. prompt [n_prompt], 1 … max_model_len - 1 ids below vocab (n_prompt == max_model_len
 * allowed with max_tokens 0). Refused at once, with the limit named, if it could never run: ids out of range,
 * longer than the model's context or the whole KV pool. The handle is freed with sluice_request_free, at any
 * time (a live one is cancelled). */
struct sluice_request *sluice_submit(struct sluice *s, const int32_t *prompt, int n_prompt,
                                     const struct sluice_sampling *p, struct err *e);
/* The same for n answers to one prompt, which is computed once: all or none are queued. Answer i has the seed
 * p->seed + i and its handle is out[i]. -1 and *e if they are refused. */
int sluice_submit_group(struct sluice *s, const int32_t *prompt, int n_prompt,
                        const struct sluice_sampling *p, int n, struct sluice_request **out, struct err *e);
/* The request leaves before the next step begins; its blocks are free then. */
void sluice_cancel(struct sluice_request *r);
void sluice_request_free(struct sluice_request *r);

struct sluice_progress {
    int n_tokens;              /* tokens made so far: entries of the arrays below that may be read */
    enum sluice_finish finish; /* once not RUNNING, n_tokens is final */
    int n_prompt_scored;       /* prompt positions whose log-probabilities may be read */
    int cached_tokens;         /* prompt tokens found in the prefix cache … */
    int disk_tokens;           /* … of which so many were brought in from disk */
    double arrived, scheduled, first_token, last_token; /* clock_now() times; 0 = not yet */
    int preemptions;
    uint64_t steps, weight_bytes; /* steps it was part of, and its share of the weights that these streamed:
                                     each step's by the requests in it */
};
void sluice_request_progress(const struct sluice_request *r, struct sluice_progress *out);
/* [n_tokens] ids; the pointer is stable, entries once published never change. */
const int32_t *sluice_request_tokens(const struct sluice_request *r);
/* Entry i: the token itself first, then the n_logprobs most likely ones, descending (ties: lower id first),
 * or logprob_ids in their order;
 * `*rank` (may be NULL) is the token's rank, from 1. NULL when logprobs were not asked for. */
const struct sluice_prob *sluice_request_logprobs(const struct sluice_request *r, int i, int *rank);
/* The same for prompt position i >= 1: how likely prompt[i] was after prompt[0 … i-1]. */
const struct sluice_prob *sluice_request_prompt_logprobs(const struct sluice_request *r, int i, int *rank);
const char *sluice_request_error(const struct sluice_request *r);

/* --- running ------------------------------------------------------------------------------------- */

/* One step: admits, runs the batch, publishes tokens. Returns the number of tokens computed; 0 = nothing to
 * do, at least until sluice_wait returns: with kv_offload_dir, requests may be waiting for the disk. */
int sluice_step(struct sluice *s);
/* Blocks until there is something to do, or `seconds` passed, or sluice_close was called. */
void sluice_wait(struct sluice *s, double seconds);
/* Starts a thread that steps and waits until sluice_close. `notify` (may be NULL) is called on that thread
 * after each step that published anything, and when a request ended: it must not block (write to an eventfd).
 */
int sluice_start(struct sluice *s, void (*notify)(void *arg), void *arg, struct err *e);

struct sluice_stats {
    int running, waiting;          /* requests */
    int waiting_for_disk;          /* of the latter, those whose prefix is being read (kv_offload_dir) */
    int kv_blocks_used, kv_blocks; /* the pool */
    uint64_t steps;
    uint64_t prompt_tokens, generation_tokens; /* since start; a prompt counts when all of it is there */
    uint64_t prompt_tokens_cached;    /* of prompt_tokens, those that came from the prefix cache … */
    uint64_t prompt_tokens_disk;      /* … and of these, those that came into it from disk */
    uint64_t refused, refused_tokens; /* submissions refused because of max_queued, and of
                                         max_queued_tokens */
    int64_t queued_tokens;            /* prompt tokens that wait to be computed */
    /* the prefix cache: prompt tokens looked up and found, counted at the lookup, and how lookups ended */
    uint64_t looked_up_tokens, cached_tokens;
    uint64_t lookups, lookups_hit;
    uint64_t lookups_unknown;  /* missed: no request before had these tokens, or they were given up */
    uint64_t lookups_no_state; /* missed: keys and values were there, but no recurrent state to resume from */
    uint64_t lookups_short;    /* missed: the prompt is not longer than a block */
    uint64_t lookups_bypassed; /* not done: the prompt is to be scored */
    struct sluice_offload_stats {
        bool enabled;
        uint64_t files, bytes, limit;         /* on disk now, and the bound */
        uint64_t bytes_written, bytes_read;   /* since start */
        uint64_t blocks_written, blocks_read; /* KV blocks … */
        uint64_t states_written, states_read; /* … and recurrent states */
        uint64_t evicted;                     /* files given up to stay within the bound */
        uint64_t dropped;                     /* evicted, but not written: the writer was behind, or failed */
        uint64_t looked_up_tokens, found_tokens; /* of prompts, beyond what memory had */
        uint64_t errors;                         /* writes that the system refused */
        /* lookups and files that did not help, by reason */
        uint64_t missed_absent, missed_slow, missed_busy, missed_damaged, missed_foreign, missed_other,
            missed_failed;
        double read_bytes_per_second; /* measured; 0 = not yet */
    } offload;
    uint64_t finished[5];                    /* by enum sluice_finish */
    uint64_t preemptions, recomputed_tokens; /* tokens that lack of memory made to be computed again */
    uint64_t forked; /* answers that began after a prompt that was computed for another (n > 1) */
    uint64_t swapped_out, swapped_in;             /* preempted requests … */
    uint64_t swapped_out_bytes, swapped_in_bytes; /* … and what was copied of them */
    size_t swap_used, swap_size;                  /* bytes */
    /* the ledger: totals since start, and the last step alone */
    struct sluice_ledger {
        uint64_t weight_bytes, kv_read_bytes, kv_write_bytes, state_bytes, flops;
        uint64_t prompt_tokens, decode_tokens, seqs;
        double seconds;          /* of the steps … */
        double sampling_seconds; /* … of them, choosing tokens */
    } total, last;
    double
        engine_heartbeat; /* clock_now() when the engine thread last came round; stale while busy = stalled */
};
void sluice_stats(struct sluice *s, struct sluice_stats *out);

/* Bytes that the steps of a ledger moved: weights, KV cache and states. */
static inline double sluice_ledger_bytes(const struct sluice_ledger *l)
{
    return (double)l->weight_bytes + (double)l->kv_read_bytes + (double)l->kv_write_bytes +
           (double)l->state_bytes;
}

#endif
