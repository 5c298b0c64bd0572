#include "cli/plan_table.h"

#include <stdarg.h>

/* "8,411,603,968" */
static void print_bytes(FILE *out, size_t bytes, int width)
{
    char digits[24], text[32];
    int n = snprintf(digits, sizeof digits, "%zu", bytes), at = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    fprintf(out, "%*s", width, text);
}

static void print_row(FILE *out, const char *what, size_t bytes, const char *note_fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void print_row(FILE *out, const char *what, size_t bytes, const char *note_fmt, ...)
{
    va_list args;
    fprintf(out, "  %-12s", what);
    print_bytes(out, bytes, 16);
    fputs("  ", out);
    va_start(args, note_fmt);
    vfprintf(out, note_fmt, args);
    va_end(args);
    fputc('\n', out);
}

void plan_table_print(FILE *out, const struct sluice_plan *p, const struct sluice_info *info)
{
    size_t row = (size_t)info->vocab * sizeof(float);
    fprintf(out, "%s: %d layers, %.1f M parameters, %s, %d thread%s\n", info->arch, info->n_layers,
            (double)info->n_params / 1e6, info->backend, p->threads, p->threads == 1 ? "" : "s");
    fprintf(out, "  %-12s%16s\n", "memory", "bytes");
    print_row(out, "weights", p->weights, "%.2f bits a weight",
              8 * (double)p->weights / (double)info->n_params);
    print_row(out, "KV pool", p->kv_pool, "%s, %d blocks of %d tokens, %lld tokens in all", p->kv_dtype,
              p->kv_blocks, p->block_size, (long long)p->kv_blocks * p->block_size);
    print_row(out, "bookkeeping", p->bookkeeping, "what the scheduler remembers of the pool");
    if (p->state_bytes_per_seq)
        print_row(out, "state slots", p->state, "recurrent states of %d request%s, %s (convolutions %s)",
                  p->max_num_seqs, p->max_num_seqs == 1 ? "" : "s", p->state_dtype, p->conv_dtype);
    if (p->state_snapshots)
        print_row(out, "state cache", p->state_cache, "%d kept states of prefixes", p->state_snapshots);
    print_row(out, "scratch", p->scratch, "a step of up to %d tokens", p->max_num_batched_tokens);
    print_row(out, "logits", p->logits, "%zu rows of %d", p->logits / row, info->vocab);
    if (p->offload)
        print_row(out, "disk staging", p->offload, "between the prefix cache and --kv-offload-dir");
    if (p->swap)
        print_row(out, "swap space", p->swap, "for preempted requests");
    print_row(out, "total", p->total, "%.1f %% of what is granted",
              100 * (double)p->total / (double)p->available);
    print_row(out, "granted", p->available, "--memory-utilization of the machine, or what is free");
    fputs("  one more request takes ", out);
    print_bytes(out, p->state_bytes_per_seq + row, 0);
    fprintf(out, " bytes (%d at once), one more token of it ", p->max_num_seqs);
    print_bytes(out, p->kv_bytes_per_token, 0);
    fprintf(out, " (up to %d)\n", p->max_model_len);
    if (p->kv_bytes_per_token_8bit < p->kv_bytes_per_token) {
        fputs("  --kv-cache-dtype int8_per_token_head: a token takes ", out);
        print_bytes(out, p->kv_bytes_per_token_8bit, 0);
        fprintf(out, " bytes, and the same pool holds %.2f x the tokens\n",
                (double)p->kv_bytes_per_token / (double)p->kv_bytes_per_token_8bit);
    }
}
