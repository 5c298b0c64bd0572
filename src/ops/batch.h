/* The one type that carries a step down: all the new tokens of all requests of one step, sequence after
 * sequence. The scheduler fills it, the model and the ops only read it. */
#ifndef SLUICE_OPS_BATCH_H
#define SLUICE_OPS_BATCH_H

#include <stdint.h>

/* Asks for a copy of a sequence's recurrent state as it is after `after` (1 … count) tokens of its slice. The
 * operations over states (conv1d, delta_net) make it, each of its own layer's part. */
struct state_save {
    int after, slot;
};

struct seq_slice {
    int first, count; /* this sequence's tokens are batch tokens first … first+count-1; count >= 1 */
    const int32_t *kv_blocks; /* block table: position p lives in block kv_blocks[p / block_size] */
    int state_slot;           /* recurrent state; -1 where the model has none */
    int state_from; /* slot whose state is copied to state_slot before the step; 0 = none (kept states
                       never live in slot 0) */
    const struct state_save *saves; /* [n_saves], ascending */
    int n_saves;
    int n_logits; /* the last n_logits of its tokens (0 … count) yield a row of logits */
};

struct batch {
    int n_tokens;
    const int32_t *tokens;    /* [n_tokens] */
    const int32_t *positions; /* [n_tokens], absolute; consecutive within a sequence. Position 0 resets the
                                 sequence's recurrent state */
    int n_seqs;
    const struct seq_slice *seqs; /* [n_seqs], in token order, together covering all tokens */
    int n_logits;                 /* sum of the sequences' n_logits: rows of logits, in token order */
};

#endif
