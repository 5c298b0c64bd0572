#include "cli/bench_peer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/str.h"

/* Appends `text` as one word of the shell. */
static void append_quoted(struct str *out, const char *text)
{
    str_addc(out, '\'');
    for (; *text; text++) {
        if (*text == '\'')
            str_adds(out, "'\\'");
        str_addc(out, *text);
    }
    str_addc(out, '\'');
}

/* The command with its placeholders replaced. */
static void fill_in(const char *command, const struct peer_work *w, struct str *out)
{
    const struct {
        const char *name;
        int number;
    } numbers[] = {
        {"{batch}", w->batch}, {"{prompt}", w->prompt}, {"{gen}", w->gen}, {"{threads}", w->threads}};
    while (*command) {
        size_t i = 0, n = sizeof numbers / sizeof numbers[0];
        while (i < n && strncmp(command, numbers[i].name, strlen(numbers[i].name)) != 0)
            i++;
        if (i < n) {
            str_addf(out, "%d", numbers[i].number);
            command += strlen(numbers[i].name);
        } else if (strncmp(command, "{model}", 7) == 0) {
            append_quoted(out, w->model);
            command += 7;
        } else {
            str_addc(out, *command++);
        }
    }
}

static double number_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key)); /* 0 when absent */
}

/* Takes what one line of output says. */
static void read_line(const char *line, struct peer_speed *out)
{
    json_t *o = json_loads(line, 0, NULL);
    if (number_of(o, "speed_pp") > 0 && number_of(o, "speed_tg") > 0)
        *out = (struct peer_speed){number_of(o, "speed_pp"), number_of(o, "speed_tg")};
    double speed = number_of(o, "avg_ts");
    if (speed > 0 && number_of(o, "n_gen") == 0)
        out->prefill_tok_s = speed;
    else if (speed > 0 && number_of(o, "n_prompt") == 0)
        out->decode_tok_s = speed;
    json_decref(o);
}

int peer_run(const char *command, const struct peer_work *w, struct peer_speed *out, struct err *e)
{
    struct str line = {0};
    char *text = NULL;
    size_t capacity = 0;
    int rc = -1;
    *out = (struct peer_speed){0};
    fill_in(command, w, &line);
    fflush(NULL); /* or the child would have our unwritten output too */
    FILE *pipe = popen(line.data, "r");
    if (!pipe) {
        err_set(e, ERR_IO, "--against: the system refused to start a shell");
        goto done;
    }
    while (getline(&text, &capacity, pipe) >= 0)
        read_line(text, out);
    int status = pclose(pipe);
    if (status != 0)
        err_set(e, ERR_INVALID, "--against: the command ended with status %d: %s",
                WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), line.data);
    else if (out->prefill_tok_s <= 0 || out->decode_tok_s <= 0)
        err_set(e, ERR_INVALID,
                "--against: no JSON line of the command's output has speed_pp and speed_tg, or avg_ts for "
                "prefill and for decode: %s",
                line.data);
    else
        rc = 0;
done:
    free(text);
    str_free(&line);
    return rc;
}
