/* Options from a YAML file (--config FILE): each key is the name of an option, its value the option's.
 *
 *     model: /models/qwen.gguf
 *     port: 9000
 *     enable-prompt-tokens-details: true        # false writes --no-…
 *     served-model-name: [qwen, qwen-small]     # several values
 *     default-chat-template-kwargs: {enable_thinking: false}    # a map becomes JSON
 *
 * It is made into words of a command line that stand before the real ones, so the command line wins. */
#ifndef SLUICE_CLI_CONFIG_FILE_H
#define SLUICE_CLI_CONFIG_FILE_H

#include "base/error.h"

/* What options_parse reads instead of argv. Free with expanded_free. */
struct expanded {
    char **argv; /* [argc]: argv[0], the file's words, the other words of the command line */
    int argc;
    char **made; /* [n_made] words that are freed with it */
    int n_made;
};

/* Without --config the words are argv's own. -1 and *e when the file is missing or wrong. */
int config_expand(int argc, char **argv, struct expanded *out, struct err *e);
void expanded_free(struct expanded *x);

#endif
