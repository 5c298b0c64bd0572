/* Prefixes on disk: a hit after a restart gives the same bits as a cold run; whatever is wrong with a file is
 * a miss; a disk that fails is done without; and the directory stays private and within its bound. */
#include "opened.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "sched/offload.h"
#include "sched/offload_store.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLOW = 1, ANSWER = 8 }; /* each number that a kernel reads is looked at */
#else
enum { SLOW = 0, ANSWER = 24 };
#endif
enum { PROBS = 2, LEN = 200 };

static const char *const models[] = {"models/llama-tiny", "models/qwen35-tiny"};

/* --- directories --------------------------------------------------------------------------------- */

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/sluice-offload-XXXXXX");
    log_set_level(LOG_LEVEL_OFF);
    return mkdtemp(dir) ? 0 : -1;
}

/* Calls fn on each file two levels down. Returns their number. */
static int each_file(void (*fn)(const char *path, void *arg), void *arg)
{
    char path[800];
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *x; d && (x = readdir(d));) {
        if (x->d_name[0] == '.' || strcmp(x->d_name, "lock") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
        DIR *sub = opendir(path);
        for (struct dirent *y; sub && (y = readdir(sub));) {
            if (y->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%s/%s/%s", dir, x->d_name, y->d_name);
            if (fn)
                fn(path, arg);
            n++;
        }
        if (sub)
            closedir(sub);
    }
    if (d)
        closedir(d);
    return n;
}

static void remove_one(const char *path, void *arg)
{
    (void)arg;
    unlink(path);
}

static int remove_dir(void **state)
{
    (void)state;
    each_file(remove_one, NULL);
    DIR *d = opendir(dir);
    for (struct dirent *x; d && (x = readdir(d));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
        if (x->d_name[0] != '.' && rmdir(path))
            unlink(path);
    }
    if (d)
        closedir(d);
    return rmdir(dir);
}

/* --- engines ------------------------------------------------------------------------------------- */

struct answer {
    int32_t tokens[ANSWER];
    struct sluice_prob probs[ANSWER][1 + PROBS];
    int cached, disk;
};

static struct sluice *with_disk(const char *path)
{
    struct sluice_options o = {.threads = 1, .max_num_seqs = 4, .max_model_len = 1024, .kv_offload_dir = dir};
    return open_model(path, &o);
}

static struct sluice_request *submit(struct sluice *s, const int32_t *ids, int n, uint64_t tenant)
{
    struct err e = {0};
    struct sluice_sampling p;
    sluice_sampling_init(&p);
    p.max_tokens = ANSWER;
    p.n_logprobs = PROBS;
    p.cache_salt[1] = tenant;
    struct sluice_request *r = sluice_submit(s, ids, n, &p, &e);
    if (!r)
        fail_msg("%s", e.msg);
    return r;
}

/* Steps, and waits where the disk is waited for. Returns whether r is done. */
static bool advance(struct sluice *s, const struct sluice_request *r)
{
    struct sluice_progress g;
    if (sluice_step(s) == 0)
        sluice_wait(s, 0.2);
    sluice_request_progress(r, &g);
    return g.finish != SLUICE_RUNNING;
}

static struct answer collect(struct sluice_request *r)
{
    struct answer a = {0};
    struct sluice_progress g;
    sluice_request_progress(r, &g);
    assert_int_equal(g.finish, SLUICE_LENGTH);
    memcpy(a.tokens, sluice_request_tokens(r), sizeof a.tokens);
    for (int i = 0; i < ANSWER; i++)
        memcpy(a.probs[i], sluice_request_logprobs(r, i, NULL), sizeof a.probs[i]);
    a.cached = g.cached_tokens;
    a.disk = g.disk_tokens;
    sluice_request_free(r);
    return a;
}

static struct answer ask(struct sluice *s, const int32_t *ids, int n, uint64_t tenant)
{
    struct sluice_request *r = submit(s, ids, n, tenant);
    while (!advance(s, r))
        ;
    return collect(r);
}

static void same(const struct answer *a, const struct answer *b)
{
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    assert_memory_equal(a->probs, b->probs, sizeof a->probs);
}

static void make_prompt(int32_t *ids, int n, int seed)
{
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)((unsigned)(i * 7919 + seed * 104729 + i * i % 31) % 900) + 3;
}

static struct sluice_offload_stats stats_of(struct sluice *s)
{
    struct sluice_stats stats;
    sluice_step(s); /* counters are published by a step */
    sluice_stats(s, &stats);
    return stats.offload;
}

/* --- tests --------------------------------------------------------------------------------------- */

static void check_private(const char *path, void *arg)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    *(uint64_t *)arg += (uint64_t)st.st_size;
}

/* The next turn of a conversation goes on after a restart, with the same bits; another tenant, another model
 * and other types find nothing of it. */
static void a_restart_hits(void **state)
{
    (void)state;
    for (size_t m = 0; m < 2; m++) {
        int32_t ids[LEN + ANSWER + 30];
        struct sluice_options plain = {.threads = 1, .max_model_len = 1024, .no_prefix_cache = true};
        struct sluice *cold = open_model(models[m], &plain);
        make_prompt(ids, LEN, 1);
        struct sluice *s = with_disk(models[m]);
        struct answer first = ask(s, ids, LEN, 7);
        assert_int_equal(first.cached, 0);
        sluice_close(s);

        memcpy(ids + LEN, first.tokens, sizeof first.tokens);
        make_prompt(ids + LEN + ANSWER, 30, 2);
        int n = LEN + ANSWER + 30;
        struct answer want = ask(cold, ids, n, 7);
        s = with_disk(models[m]);
        struct answer other = ask(s, ids, n, 8);
        assert_int_equal(other.cached, 0);
        same(&other, &want);
        struct answer got = ask(s, ids, n, 7);
        assert_true(got.disk >= 192);
        assert_int_equal(got.cached, got.disk);
        same(&got, &want);
        struct answer again = ask(s, ids, n, 7); /* now it is in memory */
        assert_int_equal(again.disk, 0);
        assert_true(again.cached >= got.cached);
        same(&again, &want);
        struct sluice_offload_stats st = stats_of(s);
        assert_true(st.blocks_read >= 12 && st.bytes_read > 0 && st.read_bytes_per_second > 0);
        assert_int_equal(st.found_tokens, got.disk);
        assert_int_equal(st.missed_damaged + st.missed_foreign + st.missed_failed, 0);
        sluice_close(s);
        uint64_t bytes = 0;
        assert_true(each_file(check_private, &bytes) >= 12);

        /* keys and values of another type, blocks of another size: not ours */
        struct sluice_options o = {.threads = 1, .max_model_len = 1024, .kv_offload_dir = dir};
        o.kv_dtype = "fp32";
        s = open_model(models[m], &o);
        assert_int_equal(ask(s, ids, n, 7).cached, 0);
        sluice_close(s);
        o.kv_dtype = NULL;
        o.block_size = 32;
        s = open_model(models[m], &o);
        assert_int_equal(ask(s, ids, n, 7).cached, 0);
        sluice_close(s);
        o.block_size = 0;
        o.cpu_level = "reference";
        s = open_model(models[m], &o);
        assert_int_equal(ask(s, ids, n, 7).cached, 0);
        sluice_close(s);
        o.cpu_level = NULL;
        o.quantization = "q8_0"; /* other weights of the same file */
        s = open_model(models[m], &o);
        assert_int_equal(ask(s, ids, n, 7).cached, 0);
        sluice_close(s);
        o.quantization = NULL;
        s = open_model(models[!m], &o);
        assert_int_equal(ask(s, ids, n, 7).cached, 0);
        sluice_close(s);
        sluice_close(cold);
        struct stat dir_mode;
        assert_int_equal(stat(dir, &dir_mode), 0);
        each_file(remove_one, NULL);
    }
}

struct damage {
    int kind, at, n; /* n files were changed */
};
enum { FLIP, CUT, LONGER, EMPTY, SWAP_TOKEN, GONE, DIRECTORY, KINDS };

static void damage_one(const char *path, void *arg)
{
    struct damage *d = arg;
    struct stat st;
    char byte;
    assert_int_equal(stat(path, &st), 0);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    off_t at = d->kind == SWAP_TOKEN ? 96 : (off_t)((long)d->at * 7919 % st.st_size);
    switch (d->kind) {
    case FLIP:
    case SWAP_TOKEN:
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= (char)(1 << (d->at % 8));
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        break;
    case CUT:
        assert_int_equal(ftruncate(fd, at), 0);
        break;
    case LONGER:
        assert_int_equal(ftruncate(fd, st.st_size + 1 + d->at % 100), 0);
        break;
    case EMPTY:
        assert_int_equal(ftruncate(fd, 0), 0);
        break;
    case GONE:
    case DIRECTORY:
        unlink(path);
        if (d->kind == DIRECTORY)
            assert_int_equal(mkdir(path, 0700), 0);
        break;
    }
    close(fd);
    d->at += 13;
    d->n++;
}

static void remove_directory(const char *path, void *arg)
{
    (void)arg;
    rmdir(path);
}

/* Every file damaged in every way (where that is slow, in half of them for each model): a miss and the same
 * text. */
static void damage_is_a_miss(void **state)
{
    (void)state;
    for (size_t m = 0; m < 2; m++) {
        int32_t ids[LEN];
        make_prompt(ids, LEN, 3);
        struct sluice *s = with_disk(models[m]);
        struct answer want = ask(s, ids, LEN, 0);
        sluice_close(s);
        for (int kind = SLOW ? (int)m : 0; kind < KINDS; kind += SLOW ? 2 : 1) {
            struct damage d = {.kind = kind, .at = 5 + kind};
            each_file(damage_one, &d);
            assert_true(d.n >= 12);
            s = with_disk(models[m]);
            struct answer got = ask(s, ids, LEN, 0);
            assert_int_equal(got.cached, 0);
            same(&got, &want);
            struct sluice_offload_stats st = stats_of(s);
            uint64_t missed = st.missed_damaged + st.missed_foreign + st.missed_other + st.missed_failed;
            if (kind == GONE || kind == DIRECTORY)
                assert_int_equal(missed, 0); /* the list does not even have them */
            else
                assert_true(missed >= 1);
            if (kind == DIRECTORY)
                each_file(remove_directory, NULL);
            sluice_close(s); /* writes again what was found to be damaged; the rest is found out later */
            s = with_disk(models[m]);
            got = ask(s, ids, LEN, 0);
            same(&got, &want);
            sluice_close(s);
            each_file(remove_one, NULL);
            s = with_disk(models[m]);
            got = ask(s, ids, LEN, 0);
            same(&got, &want);
            sluice_close(s);
        }
        each_file(remove_one, NULL);
    }
}

/* One damaged file in the middle: what is before it still hits. */
static void half_a_prefix_hits(void **state)
{
    (void)state;
    for (size_t m = 0; m < 2; m++) {
        int32_t ids[LEN];
        make_prompt(ids, LEN, 4);
        struct sluice *s = with_disk(models[m]);
        struct answer want = ask(s, ids, LEN, 0);
        sluice_close(s);
        uint64_t key[2], salt[2] = {0};
        for (int i = 0; i <= 8; i++) /* the ninth block: tokens 128 … 143 */
            offload_key(i ? key : NULL, salt, ids + 16 * i, 16, key);
        char name[OFFLOAD_NAME], path[800];
        offload_file_name(OFFLOAD_KV, key, name);
        DIR *d = opendir(dir);
        int n = 0;
        for (struct dirent *x; (x = readdir(d));) {
            snprintf(path, sizeof path, "%s/%s/%s", dir, x->d_name, name);
            struct damage how = {.kind = FLIP, .at = 3};
            if (access(path, F_OK) == 0) {
                damage_one(path, &how);
                n++;
            }
        }
        closedir(d);
        assert_int_equal(n, 1);
        s = with_disk(models[m]);
        struct answer got = ask(s, ids, LEN, 0);
        assert_int_equal(got.disk, 128); /* eight blocks; for the hybrid, a state at a grid point */
        same(&got, &want);
        sluice_close(s);
        each_file(remove_one, NULL);
    }
}

/* Requests that join and leave at random in a pool that holds a fraction of them: blocks and states go out
 * and come back all the time, and each answer equals its cold run. */
static void chaos_equals_cold_runs(void **state)
{
    (void)state;
    enum { PROMPTS = SLOW ? 6 : 12, LIVE = SLOW ? 3 : 6, ROUNDS = SLOW ? 80 : 3000 };
    for (size_t m = 0; m < 2; m++) {
        struct sluice_options o = {
            .threads = 1, .max_num_seqs = 4, .max_model_len = 400, .no_prefix_cache = true};
        struct sluice *cold = open_model(models[m], &o);
        static int32_t prompts[PROMPTS][400];
        static struct answer want[PROMPTS];
        int len[PROMPTS];
        for (int i = 0; i < PROMPTS; i++) {
            len[i] = 60 + i * 53 % (SLOW ? 140 : 250);
            make_prompt(prompts[i], 400, i % 3);
            make_prompt(prompts[i] + len[i] / 2, len[i] - len[i] / 2, 50 + i);
            want[i] = ask(cold, prompts[i], len[i], 0);
        }
        const struct sluice_plan *plan = sluice_plan(cold);
        o = (struct sluice_options){.threads = 1,
                                    .max_num_seqs = 4,
                                    .max_model_len = 400,
                                    .max_num_batched_tokens = 96,
                                    .kv_cache_bytes =
                                        30 * plan->kv_bytes_per_token * (size_t)plan->block_size,
                                    .state_cache_bytes = 3 * plan->state_bytes_per_seq,
                                    .kv_offload_dir = dir};
        sluice_close(cold);
        struct sluice *s = open_model(models[m], &o);
        struct sluice_request *live[LIVE] = {0};
        int who[LIVE] = {0};
        unsigned rng = 99;
        for (int round = 0; round < ROUNDS; round++) {
            rng = rng * 1664525 + 1013904223;
            int i = (int)(rng >> 8) % LIVE;
            if (live[i]) {
                struct sluice_progress g;
                sluice_request_progress(live[i], &g);
                if (g.finish == SLUICE_LENGTH) {
                    struct answer got = collect(live[i]);
                    same(&got, &want[who[i]]);
                    live[i] = NULL;
                } else if (rng >> 27 == 0) {
                    sluice_request_free(live[i]); /* hang up */
                    live[i] = NULL;
                }
            } else {
                who[i] = (int)(rng >> 16) % PROMPTS;
                live[i] = submit(s, prompts[who[i]], len[who[i]], 0);
            }
            if (sluice_step(s) == 0)
                sluice_wait(s, 0.001);
        }
        for (int i = 0; i < LIVE; i++)
            sluice_request_free(live[i]);
        struct sluice_stats stats;
        do {
            if (sluice_step(s) == 0)
                sluice_wait(s, 0.001);
            sluice_stats(s, &stats);
        } while (stats.running + stats.waiting > 0);
        assert_int_equal(stats.kv_blocks_used, 0);
        assert_true(stats.offload.blocks_written > 0);
        assert_true(stats.offload.found_tokens > 0);
        assert_int_equal(stats.offload.missed_damaged + stats.offload.missed_other, 0);
        sluice_close(s);
        each_file(remove_one, NULL);
    }
}

static void sum_sizes(const char *path, void *arg)
{
    struct stat st;
    if (stat(path, &st) == 0)
        *(uint64_t *)arg += (uint64_t)st.st_size;
}

/* The bound holds, and the files used last are the ones that stay. */
static void the_bound_holds(void **state)
{
    (void)state;
    struct err e = {0};
    enum { N = 64, LIMIT = 20000 };
    static int32_t tokens[16];
    static char data[1000], back[1000];
    uint64_t model[2] = {5, 6}, bytes = 0;
    struct offload_store *s = offload_store_open(dir, model, LIMIT, 1100, &e);
    assert_non_null(s);
    assert_null(offload_store_open(dir, model, LIMIT, 1100, &e)); /* it is taken */
    assert_int_equal(e.code, ERR_BUSY);
    struct offload_file f = {
        .kind = OFFLOAD_KV, .model = {5, 6}, .tokens = tokens, .n_tokens = 16, .bytes = sizeof data};
    for (int i = 0; i < N; i++) {
        f.key[0] = (uint64_t)i;
        memset(data, i, sizeof data);
        assert_int_equal(offload_store_put(s, &f, data), 0);
        f.key[0] = 0;
        assert_true(offload_store_has(s, OFFLOAD_KV, f.key)); /* used all the time */
    }
    struct offload_usage u;
    offload_store_usage(s, &u);
    each_file(sum_sizes, &bytes);
    assert_int_equal(u.bytes, bytes);
    assert_in_range(u.bytes, LIMIT / 2, LIMIT);
    assert_int_equal(u.files + u.evicted, N);
    assert_int_equal(offload_store_get(s, &f, back), OFFLOAD_OK);
    assert_int_equal(back[0], 0);
    f.key[0] = N - 1;
    assert_int_equal(offload_store_get(s, &f, back), OFFLOAD_OK);
    assert_memory_equal(back, data, sizeof data);
    f.key[0] = 1;
    assert_int_equal(offload_store_get(s, &f, back), OFFLOAD_ABSENT);
    f.bytes = LIMIT;
    char *large = calloc(1, LIMIT);
    assert_int_equal(offload_store_put(s, &f, large), EFBIG);
    free(large);
    offload_store_close(s);

    /* a smaller bound at the next start, and a directory of other things in it */
    char path[800];
    snprintf(path, sizeof path, "%s/notes", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    strcat(path, "/0000.kv");
    close(open(path, O_CREAT | O_WRONLY, 0600));
    s = offload_store_open(dir, model, 5000, 1100, &e);
    assert_non_null(s);
    offload_store_usage(s, &u);
    assert_in_range(u.files, 3, 5);
    f.bytes = sizeof data;
    f.key[0] = 0;
    assert_true(offload_store_has(s, OFFLOAD_KV, f.key)); /* its file was read last */
    assert_int_equal(access(path, F_OK), 0);
    offload_store_close(s);
    unlink(path);
}

/* A disk that takes nothing: serving goes on, errors are counted, nothing half-written stays. */
static void a_full_disk_is_done_without(void **state)
{
    (void)state;
    int32_t ids[LEN];
    make_prompt(ids, LEN, 5);
    struct sluice *s = with_disk(models[0]);
    struct rlimit old, none;
    getrlimit(RLIMIT_FSIZE, &old);
    none = (struct rlimit){.rlim_cur = 200, .rlim_max = old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &none);
    struct answer want = ask(s, ids, LEN, 0);
    sluice_close(s);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(each_file(NULL, NULL), 0);
    s = with_disk(models[0]);
    struct answer got = ask(s, ids, LEN, 0);
    assert_int_equal(got.cached, 0);
    same(&got, &want);
    char moved[80]; /* the directory goes away under the server */
    snprintf(moved, sizeof moved, "%s-moved", dir);
    each_file(remove_one, NULL);
    DIR *d = opendir(dir);
    for (struct dirent *x; (x = readdir(d));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
        if (x->d_name[0] != '.')
            rmdir(path);
    }
    closedir(d);
    got = ask(s, ids, LEN, 0);
    same(&got, &want);
    sluice_close(s);
    assert_int_equal(each_file(NULL, NULL), 0);
}

static void chown_one(const char *path, void *arg)
{
    assert_int_equal(chown(path, *(uid_t *)arg, (gid_t)-1), 0);
}

/* A directory that may only be read: what it holds is used, and serving goes on. Root may write everywhere,
 * so the second part is done by another user. */
static void a_read_only_directory_is_read(void **state)
{
    (void)state;
    uid_t user = geteuid() == 0 ? 65534 : geteuid();
    int32_t ids[LEN], other[LEN];
    make_prompt(ids, LEN, 6);
    make_prompt(other, LEN, 7);
    struct sluice *s = with_disk(models[0]);
    struct answer want = ask(s, ids, LEN, 0);
    sluice_close(s);
    int files = each_file(chown_one, &user);
    char paths[4][400];
    int n = 0;
    DIR *d = opendir(dir);
    snprintf(paths[n++], sizeof paths[0], "%s", dir);
    for (struct dirent *x; (x = readdir(d)) && n < 4;)
        if (x->d_name[0] != '.')
            snprintf(paths[n++], sizeof paths[0], "%s/%s", dir, x->d_name);
    closedir(d);
    for (int i = 0; i < n; i++) {
        chown_one(paths[i], &user);
        assert_int_equal(chmod(paths[i], 0500), 0);
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() != user && setuid(user))
            _exit(9);
        if (access(fixture(models[0]), R_OK))
            _exit(77); /* this user may not see the fixtures */
        s = with_disk(models[0]);
        struct answer got = ask(s, ids, LEN, 0), more = ask(s, other, LEN, 0);
        bool good = got.disk >= 128 && memcmp(got.tokens, want.tokens, sizeof got.tokens) == 0 &&
                    memcmp(got.probs, want.probs, sizeof got.probs) == 0 && more.cached == 0;
        sluice_close(s); /* tries to write */
        _exit(good ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    for (int i = 0; i < n; i++)
        assert_int_equal(chmod(paths[i], 0700), 0);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("skipped: another user may not read the fixtures here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(each_file(NULL, NULL), files);
}

/* A directory that cannot be: refused at the start, with the reason. */
static void a_wrong_directory_is_refused(void **state)
{
    (void)state;
    struct err e = {0};
    char path[400];
    uint64_t model[2] = {1, 2};
    snprintf(path, sizeof path, "%s/file", dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_null(offload_store_open(path, model, 0, 1000, &e));
    assert_non_null(strstr(e.msg, path));
    unlink(path);
    snprintf(path, sizeof path, "%s/not/there", dir);
    assert_null(offload_store_open(path, model, 0, 1000, &e));
    assert_non_null(strstr(e.msg, path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_restart_hits, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(damage_is_a_miss, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(half_a_prefix_hits, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(chaos_equals_cold_runs, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_bound_holds, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_full_disk_is_done_without, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_read_only_directory_is_read, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_wrong_directory_is_refused, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
