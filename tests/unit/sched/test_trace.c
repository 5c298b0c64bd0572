/* The trace is JSON that a viewer can read: every step in order with phases inside it, every request's life,
 * and nothing lost while the writer keeps up. */
#include "opened.h"

#include <jansson.h>
#include <unistd.h>

#include "sched/trace.h"

static void a_run_becomes_a_timeline(void **state)
{
    (void)state;
    char path[] = "/tmp/sluice-trace-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct err e = {0};
    struct sluice_options o = {.threads = 1, .max_num_seqs = 4, .max_model_len = 200, .trace_path = path};
    struct sluice *s = open_model("models/llama-tiny", &o);
    struct sluice_sampling p;
    sluice_sampling_init(&p);
    int32_t ids[50] = {0};
    struct sluice_request *r[3];
    for (int i = 0; i < 3; i++)
        r[i] = sluice_submit(s, ids, 50, &p, &e);
    sluice_step(s);
    sluice_cancel(r[2]);
    while (sluice_step(s) > 0)
        ;
    struct sluice_stats stats;
    sluice_stats(s, &stats);
    for (int i = 0; i < 3; i++)
        sluice_request_free(r[i]);
    sluice_close(s);

    json_error_t why;
    json_t *trace = json_load_file(path, 0, &why);
    if (!trace)
        fail_msg("line %d: %s", why.line, why.text);
    int steps = 0, forwards = 0, begun = 0, ended = 0, marks = 0;
    double last = 0;
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        const char *name = json_string_value(json_object_get(event, "name"));
        const char *kind = json_string_value(json_object_get(event, "ph"));
        if (strstr(name, " step")) {
            steps++;
            double at = json_number_value(json_object_get(event, "ts"));
            assert_true(at > last);
            last = at;
            assert_true(json_integer_value(json_object_get(json_object_get(event, "args"), "weight_bytes")) >
                        0);
        }
        forwards += strcmp(name, "forward") == 0;
        begun += strcmp(kind, "b") == 0;
        ended += strcmp(kind, "e") == 0;
        marks += strcmp(kind, "n") == 0;
        json_t *length = json_object_get(event, "dur");
        assert_true(!length || json_number_value(length) >= 0);
    }
    assert_int_equal(steps, stats.steps);
    assert_int_equal(forwards, stats.steps);
    assert_int_equal(begun, 9); /* queued, prefill, decode of three */
    assert_int_equal(ended, begun);
    assert_int_equal(marks, 1); /* one was aborted */
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(trace, "otherData"), "dropped_events")), 0);
    json_decref(trace);
    unlink(path);
}

static void a_place_that_cannot_be_written_is_named(void **state)
{
    (void)state;
    struct err e = {0};
    assert_null(trace_open("/no/such/folder/trace.json", &e));
    assert_non_null(strstr(e.msg, "/no/such/folder/trace.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_run_becomes_a_timeline),
                                       cmocka_unit_test(a_place_that_cannot_be_written_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
