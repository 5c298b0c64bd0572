/* `sluice plan MODEL`: the memory plan that `sluice serve` would make with the same options, without loading
 * the weights. */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/load.h"
#include "cli/plan_table.h"

int cmd_plan(int argc, char **argv)
{
    const char *model = NULL;
    struct sluice_options engine = {0};
    uint64_t kv_bytes = 0;
    double swap_gib = 0;
    const struct option_positional words[] = {
        {"MODEL", &model, true, "a .gguf file or a Hugging Face directory"}, {0}};
    const struct option_spec options[] = {
        {.group = "Scheduler"},
        POOL_OPTIONS(engine, kv_bytes),
        SWAP_OPTION(swap_gib),
        ENGINE_OPTIONS(engine),
        {0},
    };
    const struct option_command command = {
        "plan",
        "Prints the memory that serving a model takes, part by part, without loading it: what `sluice serve` "
        "prints at its start with the same options. Fails where it would.",
        words, options};
    int status = options_parse(&command, argc, argv);
    if (status >= 0)
        return status;
    if (engine.max_model_len < 0)
        engine.max_model_len = 0;
    engine.kv_cache_bytes = kv_bytes;
    engine.swap_bytes = swap_bytes_of(swap_gib);

    struct err e = {0};
    struct sluice_plan plan;
    struct sluice_info info;
    struct model_file *file = model_file_open(model, &e);
    status = file && sluice_plan_only(file, &engine, &plan, &info, &e) == 0 ? 0 : EXIT_FAILED;
    if (status)
        fprintf(stderr, "sluice plan: %s\n", e.msg);
    else
        plan_table_print(stdout, &plan, &info);
    model_file_close(file);
    return status;
}
