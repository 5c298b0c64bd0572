/* What the engine counts, on the metrics page: queues, KV cache and prefix cache under vLLM's names, then the
 * ledger and what else only sluice has. */
#include "http/metrics_page.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static void write_queues(struct page *p, const struct sluice_stats *s)
{
    page_gauge(p, "vllm:num_requests_running", "Requests in the running batch.", s->running);
    page_gauge(p, "vllm:num_requests_waiting", "Requests waiting to be scheduled.", s->waiting);
    const struct page_part reasons[] = {{"capacity", s->waiting - s->waiting_for_disk},
                                        {"deferred", s->waiting_for_disk}};
    page_parts(
        p, "vllm:num_requests_waiting_by_reason", "gauge",
        "Waiting requests by reason: for room in a step or in memory, or deferred until their prefix is "
        "read from disk.",
        "reason", reasons, COUNT(reasons));
    const struct page_part sleep[] = {{"awake", 1}, {"weights_offloaded", 0}, {"discard_all", 0}};
    page_parts(p, "vllm:engine_sleep_state", "gauge", "Whether the engine is awake.", "sleep_state", sleep,
               COUNT(sleep));
    page_heading(p, "vllm:admission_rejections_total", "counter",
                 "Requests refused because too many waited.");
    str_addf(p->out, "vllm:admission_rejections_total{%s,reason=\"max_num_queued_reqs\"} %llu\n", p->model,
             (unsigned long long)s->refused);
    str_addf(p->out, "vllm:admission_rejections_total{%s,reason=\"max_num_queued_tokens\"} %llu\n", p->model,
             (unsigned long long)s->refused_tokens);
    page_gauge(p, "sluice:queued_tokens", "Prompt tokens that wait to be computed.",
               (double)s->queued_tokens);
    page_counter(p, "vllm:num_preemptions", "Requests that lost their blocks to others and were put back.",
                 (double)s->preemptions);
}

static void write_cache(struct page *p, const struct sluice_stats *s, const struct sluice_plan *plan)
{
    page_gauge(p, "vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 1 = all.",
               s->kv_blocks > 0 ? (double)s->kv_blocks_used / s->kv_blocks : 0);
    long long tokens = (long long)plan->kv_blocks * plan->block_size;
    page_heading(p, "vllm:cache_config_info", "gauge", "Settings of the KV cache.");
    str_addf(
        p->out,
        "vllm:cache_config_info{engine=\"0\",block_size=\"%d\",num_gpu_blocks=\"%d\",num_cpu_blocks=\"%zu\","
        "gpu_memory_utilization=\"%g\",cache_dtype=\"%s\",enable_prefix_caching=\"%s\","
        "kv_cache_size_tokens=\"%lld\",kv_cache_max_concurrency=\"%.2f\",kv_bytes_per_token=\"%zu\","
        "mamba_cache_dtype=\"%s\",mamba_ssm_cache_dtype=\"%s\"} 1\n",
        plan->block_size, plan->kv_blocks,
        plan->kv_blocks > 0 && plan->kv_pool > 0 ? plan->swap / (plan->kv_pool / (size_t)plan->kv_blocks) : 0,
        plan->memory_utilization, plan->kv_dtype ? plan->kv_dtype : "auto",
        plan->prefix_cache ? "True" : "False", tokens,
        plan->max_model_len > 0 ? (double)tokens / plan->max_model_len : 0, plan->kv_bytes_per_token,
        plan->conv_dtype ? plan->conv_dtype : "None", plan->state_dtype ? plan->state_dtype : "None");
    page_counter(p, "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.",
                 (double)s->looked_up_tokens);
    page_counter(p, "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.",
                 (double)s->cached_tokens);
    page_counter(p, "vllm:external_prefix_cache_queries",
                 "Prompt tokens looked up on disk: those that the prefix cache did not have.",
                 (double)s->offload.looked_up_tokens);
    page_counter(p, "vllm:external_prefix_cache_hits", "Prompt tokens brought in from disk.",
                 (double)s->offload.found_tokens);
}

static void write_tokens(struct page *p, const struct sluice_stats *s)
{
    uint64_t cached = s->prompt_tokens_cached, disk = s->prompt_tokens_disk, memory = cached - disk;
    page_counter(p, "vllm:prompt_tokens", "Prompt tokens of prefilled requests, cached ones included.",
                 (double)s->prompt_tokens);
    const struct page_part sources[] = {{"local_compute", (double)(s->prompt_tokens - cached)},
                                        {"local_cache_hit", (double)memory},
                                        {"external_kv_transfer", (double)disk}};
    page_parts(p, "vllm:prompt_tokens_by_source", "counter", "Prompt tokens by where they came from.",
               "source", sources, COUNT(sources));
    page_counter(p, "vllm:prompt_tokens_cached", "Prompt tokens that came from the cache.", (double)cached);
    const struct page_part caches[] = {{"device", (double)memory},
                                       {"host", 0},
                                       {"p2p", 0},
                                       {"disk", (double)disk},
                                       {"external_unspecified", 0}};
    page_parts(p, "vllm:prompt_tokens_cached_by_source", "counter",
               "Cached prompt tokens by where they were kept.", "source", caches, COUNT(caches));
    page_counter(p, "vllm:generation_tokens", "Generated tokens.", (double)s->generation_tokens);
}

static void write_ledger(struct page *p, const struct sluice_stats *s, double bandwidth)
{
    const struct sluice_ledger *t = &s->total, *l = &s->last;
    page_counter(p, "sluice:steps", "Steps of the engine: passes of the weights.", (double)s->steps);
    page_counter(p, "sluice:weight_bytes", "Bytes of weights read.", (double)t->weight_bytes);
    page_counter(p, "sluice:kv_read_bytes", "Bytes of the KV cache read.", (double)t->kv_read_bytes);
    page_counter(p, "sluice:kv_write_bytes", "Bytes of the KV cache written.", (double)t->kv_write_bytes);
    page_counter(p, "sluice:state_bytes", "Bytes of recurrent state read and written.",
                 (double)t->state_bytes);
    page_counter(p, "sluice:flops", "Arithmetic operations.", (double)t->flops);
    page_counter(p, "sluice:step_prompt_tokens", "Prompt tokens computed in steps.",
                 (double)t->prompt_tokens);
    page_counter(p, "sluice:step_decode_tokens", "Answer tokens computed in steps.",
                 (double)t->decode_tokens);
    page_counter(p, "sluice:step_seqs",
                 "Requests in each step, summed: by steps, the requests that share a pass.", (double)t->seqs);
    page_counter(p, "sluice:step_seconds", "Time spent in steps.", t->seconds);
    page_counter(p, "sluice:sampling_seconds", "Of them, time spent choosing tokens.", t->sampling_seconds);
    page_gauge(p, "sluice:last_step_weight_bytes", "Bytes of weights read by the last step.",
               (double)l->weight_bytes);
    page_gauge(p, "sluice:last_step_kv_read_bytes", "Bytes of the KV cache read by the last step.",
               (double)l->kv_read_bytes);
    page_gauge(p, "sluice:last_step_state_bytes", "Bytes of recurrent state moved by the last step.",
               (double)l->state_bytes);
    page_gauge(p, "sluice:last_step_flops", "Arithmetic operations of the last step.", (double)l->flops);
    page_gauge(p, "sluice:last_step_prompt_tokens", "Prompt tokens in the last step.",
               (double)l->prompt_tokens);
    page_gauge(p, "sluice:last_step_decode_tokens", "Answer tokens in the last step.",
               (double)l->decode_tokens);
    page_gauge(p, "sluice:last_step_seqs", "Requests in the last step.", (double)l->seqs);
    page_gauge(p, "sluice:last_step_seconds", "Duration of the last step.", l->seconds);
    page_gauge(p, "sluice:read_limit_bytes_per_second",
               "What this machine's threads can read from memory, measured at the start; 0 = not measured "
               "(--measure-limits).",
               bandwidth);
    page_gauge(
        p, "sluice:last_step_share_of_read_limit",
        "Bytes that the last step moved, by its time and by the limit: near 1 when decoding is as fast as "
        "memory allows; 0 while the limit is not measured. Prompts are bounded by arithmetic instead.",
        bandwidth > 0 && l->seconds > 0 ? sluice_ledger_bytes(l) / l->seconds / bandwidth : 0);
}

/* Why the prefix cache did or did not help: a silent miss is what angers. */
static void write_lookups(struct page *p, const struct sluice_stats *s)
{
    const struct page_part results[] = {{"hit", (double)s->lookups_hit},
                                        {"unknown", (double)s->lookups_unknown},
                                        {"no_state", (double)s->lookups_no_state},
                                        {"short", (double)s->lookups_short},
                                        {"bypassed", (double)s->lookups_bypassed}};
    page_parts(
        p, "sluice:prefix_lookups", "counter",
        "Lookups in the prefix cache by how they ended: hit; unknown tokens; known, but without a "
        "recurrent state to resume from; prompt too short; not looked up because the prompt is scored.",
        "result", results, COUNT(results));
    page_counter(p, "sluice:recomputed_tokens", "Tokens computed again because their blocks were taken.",
                 (double)s->recomputed_tokens);
    page_counter(p, "sluice:forked_answers",
                 "Answers that began after a prompt that was computed for another (n > 1).",
                 (double)s->forked);
    page_counter(p, "sluice:swapped_out", "Preempted requests whose cache was copied to swap space.",
                 (double)s->swapped_out);
    page_counter(p, "sluice:swapped_out_bytes", "Bytes copied to swap space.", (double)s->swapped_out_bytes);
    page_counter(p, "sluice:swapped_in", "Preempted requests that were copied back from there.",
                 (double)s->swapped_in);
    page_counter(p, "sluice:swapped_in_bytes", "Bytes copied back from swap space.",
                 (double)s->swapped_in_bytes);
    page_gauge(p, "sluice:swap_used_bytes", "Swap space in use.", (double)s->swap_used);
    page_gauge(p, "sluice:swap_limit_bytes", "Swap space (--swap-space).", (double)s->swap_size);
}

static void write_offload(struct page *p, const struct sluice_offload_stats *o)
{
    page_gauge(p, "sluice:kv_offload_files", "Files of prefixes on disk (--kv-offload-dir).",
               (double)o->files);
    page_gauge(p, "sluice:kv_offload_bytes", "Their size.", (double)o->bytes);
    page_gauge(p, "sluice:kv_offload_limit_bytes", "The bound of their size; 0 = none are kept.",
               o->enabled ? (double)o->limit : 0);
    page_counter(p, "sluice:kv_offload_written_bytes", "Bytes written to these files.",
                 (double)o->bytes_written);
    page_counter(p, "sluice:kv_offload_read_bytes", "Bytes read from them.", (double)o->bytes_read);
    const struct page_part written[] = {{"kv", (double)o->blocks_written},
                                        {"state", (double)o->states_written}};
    page_parts(p, "sluice:kv_offload_written_files", "counter", "Files written.", "kind", written,
               COUNT(written));
    const struct page_part read[] = {{"kv", (double)o->blocks_read}, {"state", (double)o->states_read}};
    page_parts(p, "sluice:kv_offload_read_files", "counter", "Files read.", "kind", read, COUNT(read));
    page_counter(p, "sluice:kv_offload_evicted_files", "Files given up to stay within the bound.",
                 (double)o->evicted);
    page_counter(p, "sluice:kv_offload_dropped",
                 "Blocks and states that were not written because the disk was behind or refused.",
                 (double)o->dropped);
    page_counter(p, "sluice:kv_offload_errors", "Writes that the system refused.", (double)o->errors);
    const struct page_part misses[] = {
        {"absent", (double)o->missed_absent},   {"slow", (double)o->missed_slow},
        {"busy", (double)o->missed_busy},       {"damaged", (double)o->missed_damaged},
        {"foreign", (double)o->missed_foreign}, {"other", (double)o->missed_other},
        {"failed", (double)o->missed_failed}};
    page_parts(
        p, "sluice:kv_offload_misses", "counter",
        "Why the disk did not help. Lookups: absent; slower to read than to compute; too many being read. "
        "Files: damaged; of another model or engine; of other tokens; not readable.",
        "reason", misses, COUNT(misses));
    page_gauge(p, "sluice:kv_offload_read_bytes_per_second", "Measured speed of reading; 0 = not yet.",
               o->read_bytes_per_second);
}

void page_write_engine(struct page *p, const struct metrics_page *page)
{
    const struct sluice_stats *s = page->stats;
    write_queues(p, s);
    write_cache(p, s, page->plan);
    write_tokens(p, s);
    write_ledger(p, s, page->read_bandwidth);
    write_lookups(p, s);
    write_offload(p, &s->offload);
}
