/* Memory limits of cgroups: the process's own group and all around it, both versions, in a made-up tree. */
#include "unit.h"

#include <stdint.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/str.h"

static char root[] = "/tmp/sluice-test-mem-XXXXXX";

/* Writes ROOT/path and the folders that it needs. */
static void put(const char *path, const char *text)
{
    struct str s = {0};
    str_addf(&s, "%s/%s", root, path);
    for (char *at = s.data + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        mkdir(s.data, 0700);
        *at = '/';
    }
    FILE *f = fopen(s.data, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    str_free(&s);
}

static void expect(size_t limit, size_t left)
{
    size_t got_limit, got_left;
    mem_cgroup(root, &got_limit, &got_left);
    assert_int_equal(got_limit, limit);
    assert_int_equal(got_left, left);
}

#define V2 "sys/fs/cgroup/"
#define V1 "sys/fs/cgroup/memory/"

static void test_v2(void **state)
{
    (void)state;
    expect(SIZE_MAX, SIZE_MAX); /* nothing there */
    put("proc/self/cgroup", "0::/user.slice/app.service/worker\n");
    expect(SIZE_MAX, SIZE_MAX);
    put(V2 "user.slice/app.service/worker/memory.max", "max\n");
    put(V2 "user.slice/app.service/memory.max", "5000000\n");
    put(V2 "user.slice/memory.max", "9000000\n");
    expect(5000000, SIZE_MAX); /* the limit of the group around it */
    put(V2 "user.slice/app.service/memory.current", "3000000\n");
    put(V2 "user.slice/app.service/memory.stat",
        "anon 1\nactive_file 400000\ninactive_file 600000\nshmem 7\nworkingset_activate_file 99\n");
    expect(5000000, 3000000);                         /* 2,000,000 in use that are not page cache */
    put(V2 "user.slice/memory.current", "8500000\n"); /* the neighbours' share */
    expect(5000000, 500000);
    put(V2 "user.slice/app.service/worker/memory.max", "70000\n");
    put(V2 "user.slice/app.service/worker/memory.current", "80000\n");
    expect(70000, 0);
    put(V2 "memory.max", "1000\n"); /* a container's root */
    expect(1000, 0);
}

static void test_v1(void **state)
{
    (void)state;
    put("proc/self/cgroup",
        "12:cpu,cpuacct:/other\n4:hugetlb,memory:/docker/abc\n1:name=systemd:/docker/abc\n");
    expect(SIZE_MAX, SIZE_MAX);
    /* Inside a container its own group is the root of what is seen, whatever /proc says. */
    put(V1 "memory.limit_in_bytes", "4000000\n");
    put(V1 "memory.usage_in_bytes", "1500000\n");
    put(V1 "memory.stat", "active_file 1\ntotal_inactive_file 300000\ntotal_active_file 200000\n");
    expect(4000000, 3000000);
    put(V1 "docker/abc/memory.limit_in_bytes", "2000000\n");
    put(V1 "docker/abc/memory.usage_in_bytes", "100000\n");
    expect(2000000, 1900000);
    put(V1 "other/memory.limit_in_bytes", "5\n"); /* of another hierarchy */
    expect(2000000, 1900000);
}

static void test_odd(void **state)
{
    (void)state;
    put("proc/self/cgroup", "");
    expect(SIZE_MAX, SIZE_MAX);
    put("proc/self/cgroup", "0\n::\n0::\nmemory\n:memory:\n");
    put(V2 "memory.max", "900\n");
    put(V1 "memory.limit_in_bytes", "800\n");
    put(V1 "memory.usage_in_bytes", "nonsense\n");
    expect(800, SIZE_MAX);
    struct str s = {0};
    str_adds(&s, "0::/");
    for (int i = 0; i < 3000; i++)
        str_adds(&s, "long/");
    put("proc/self/cgroup", str_text(&s)); /* longer than any path: no group */
    str_free(&s);
    size_t limit, left;
    mem_cgroup(root, &limit, &left);
    /* This machine's own numbers are sane. */
    assert_true(mem_total() >= (size_t)64 << 20 && mem_total() < (size_t)1 << 50);
    assert_true(mem_available() <= mem_total() || mem_available() == SIZE_MAX);
}

/* Each test has a tree of its own. */
static int setup(void **state)
{
    (void)state;
    memcpy(root + strlen(root) - 6, "XXXXXX", 6);
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const files[] = {"proc/self/cgroup",
                                        V2 "user.slice/app.service/worker/memory.max",
                                        V2 "user.slice/app.service/worker/memory.current",
                                        V2 "user.slice/app.service/worker",
                                        V2 "user.slice/app.service/memory.max",
                                        V2 "user.slice/app.service/memory.current",
                                        V2 "user.slice/app.service/memory.stat",
                                        V2 "user.slice/app.service",
                                        V2 "user.slice/memory.max",
                                        V2 "user.slice/memory.current",
                                        V2 "user.slice",
                                        V2 "memory.max",
                                        V1 "docker/abc/memory.limit_in_bytes",
                                        V1 "docker/abc/memory.usage_in_bytes",
                                        V1 "docker/abc",
                                        V1 "docker",
                                        V1 "other/memory.limit_in_bytes",
                                        V1 "other",
                                        V1 "memory.limit_in_bytes",
                                        V1 "memory.usage_in_bytes",
                                        V1 "memory.stat",
                                        "sys/fs/cgroup/memory",
                                        "sys/fs/cgroup",
                                        "sys/fs",
                                        "sys",
                                        "proc/self",
                                        "proc"};
    char path[300];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", root, files[i]);
        remove(path);
    }
    return remove(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_v2, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v1, setup, teardown),
        cmocka_unit_test_setup_teardown(test_odd, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
