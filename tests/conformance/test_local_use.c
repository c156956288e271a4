/* What replicas use, as the local backend sees it: real processes that burn time and hold memory, and GPUs by a library
 * that stands in for NVIDIA's. */
#include "backend/local/cgroup.h"
#include "backend/local/local.h"
#include "base/file.h"
#include "conformance/suite.h"
#include "harness.h"
#include "proc/nvml.h"

#include <libgen.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static adli_member_use use_of(adlt_site *site, int member)
{
    adli_member_use use = {.uid = "job", .group = 1, .member = member};
    site->backend->ops->use(site->backend->self, &use, 1);
    return use;
}

/* Asks until so much was used, for a minute at most. */
static adli_member_use wait_use(adlt_site *site, int member, double cpu_s, int64_t memory_bytes)
{
    adli_member_use use = {0};
    for (int i = 0; i < 6000; i++) {
        use = use_of(site, member);
        if (use.cpu_s >= cpu_s && use.memory_bytes >= memory_bytes)
            break;
        usleep(10000);
    }
    return use;
}

TEST(time_and_memory_of_processes_are_seen)
{
    static const char script[] =
        "if [ $ADAPTDL_REPLICA_RANK = 0 ]; then (head -c 64M /dev/zero; sleep 1000) | tail & "
        "setsid sh -c 'while :; do :; done' & fi; sleep 1000";
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2, script));
    adli_member_use busy = wait_use(site, 0, 0.3, 64 * MIB), idle = use_of(site, 1);
    CHECK(busy.cpu_s >= 0.3);
    CHECK(busy.memory_bytes >= 64 * MIB && busy.memory_bytes < 256 * MIB);
    CHECK(idle.cpu_s >= 0 && idle.cpu_s < 0.3); /* of its own, not the machine's */
    CHECK(idle.memory_bytes >= 0 && idle.memory_bytes < 16 * MIB);
    CHECK(isnan(idle.gpus) && idle.gpu_memory_bytes == -1);

    adli_member_use both[] = {{.uid = "job", .group = 1, .member = 1},
                              {.uid = "job", .group = 1, .member = 0},
                              {.uid = "job", .group = 1, .member = 7},
                              {.uid = "../job", .group = 1}};
    backend->ops->use(backend->self, both, 4);
    CHECK(both[1].cpu_s >= busy.cpu_s && both[1].memory_bytes >= 64 * MIB);
    CHECK(both[0].cpu_s < 0.3 && both[0].memory_bytes < 16 * MIB);
    CHECK(isnan(both[2].cpu_s) && both[2].memory_bytes == -1);
    CHECK(isnan(both[3].cpu_s) && both[3].memory_bytes == -1);
    backend->ops->use(backend->self, NULL, 0);
    CLOSE();
}

/* Workers that load data are born and die all the time; those that an end left without a parent too. */
TEST(time_of_those_that_ended_is_not_lost)
{
    static const char script[] = "burn() { i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; }; "
                                 "(burn); ( (burn; echo orphan) & ); while [ ! -e $DIR/on ]; do "
                                 "sleep 0.01; done; echo done; "
                                 "sleep 1000";
    double most = 0;
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 1, script));
    for (int i = 0; i < 6000 && !strstr(adlt_log(site, "job", 1, 0), "orphan"); i++) {
        most = fmax(most, use_of(site, 0).cpu_s);
        usleep(1000);
    }
    most = fmax(most, use_of(site, 0).cpu_s);
    adlt_backend.touch(site->state, "job", "on");
    CHECK(adlt_wait_log(site, "job", 1, 0, "done"));
    adli_member_use end = use_of(site, 0);
    CHECK(most > 0.01);
    CHECK(end.cpu_s >= most);
    CLOSE();
}

TEST(memory_that_processes_share_counts_once)
{
    static const char script[] =
        "x=$(head -c 32M /dev/zero | tr '\\0' a); for i in 1 2 3 4 5 6 7; do "
        "(while :; do sleep 1; done; : $x) & done; echo up; sleep 1000; : $x";
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 1, script));
    CHECK(adlt_wait_log(site, "job", 1, 0, "up"));
    adli_member_use use = wait_use(site, 0, 0, 32 * MIB);
    CHECK(use.memory_bytes >= 32 * MIB);
    CHECK(use.memory_bytes < 160 * MIB); /* eight of them would have 256 and more */
    CLOSE();
}

TEST(a_control_group_says_the_same)
{
    setenv("ADLT_CGROUPS", "v1", 1);
    adlt_site *site = adlt_open();
    unsetenv("ADLT_CGROUPS");
    if (!site)
        SKIP("%s", adl_error());
    CHECK_OK(adlt_start(site, "job", 1, 1,
                        "(head -c 64M /dev/zero; sleep 1000) | tail & "
                        "while :; do :; done"));
    adli_member_use use = wait_use(site, 0, 0.2, 64 * MIB);
    CHECK(use.cpu_s >= 0.2);
    CHECK(use.memory_bytes >= 64 * MIB && use.memory_bytes < 256 * MIB);
    CLOSE();
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    REQUIRE_OK(adli_file_write(path, text, strlen(text)));
}

/* Both versions, from files as kernels write them. */
TEST(files_of_control_groups_are_read)
{
    char dir[] = "/tmp/adaptdl-use-XXXXXX", command[64];
    REQUIRE(mkdtemp(dir));
    adli_cgroup second = {.kind = ADLI_CGROUP_V2}, first = {.kind = ADLI_CGROUP_V1}, none = {0};
    for (int i = 0; i < 2; i++)
        snprintf(first.path[i], sizeof first.path[i], "%s", dir);
    snprintf(second.path[0], sizeof second.path[0], "%s", dir);
    CHECK(isnan(adli_cgroup_cpu_s(&first)) && isnan(adli_cgroup_cpu_s(&second)));
    CHECK_INT(adli_cgroup_memory(&second), -1);
    put(dir, "memory.current", "100000000\n");
    CHECK_INT(adli_cgroup_memory(&second), -1);
    put(dir, "memory.stat", "anon 1\nfile 60000000\nkernel 5\nshmem 10000000\n");
    CHECK_INT(adli_cgroup_memory(&second), 50000000);
    put(dir, "cpu.stat", "nr_periods 3\nusage_usec 2500000\nuser_usec 1\n");
    CHECK_NEAR(adli_cgroup_cpu_s(&second), 2.5, 1e-9);
    put(dir, "cpu.stat", "garbage");
    CHECK(isnan(adli_cgroup_cpu_s(&second)));
    put(dir, "memory.usage_in_bytes", "90\n");
    put(dir, "memory.stat", "cache 1\ntotal_cache 50\ntotal_rss 3\n");
    CHECK_INT(adli_cgroup_memory(&first), 40);
    put(dir, "cpuacct.usage", "1500000000\n");
    CHECK_NEAR(adli_cgroup_cpu_s(&first), 1.5, 1e-9);
    CHECK(isnan(adli_cgroup_cpu_s(&none)) && adli_cgroup_memory(&none) == -1);
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK_INT(system(command), 0);
}

/* ---- GPUs ---- */

static void fake_library(char *out)
{
    char self[PATH_MAX] = "";
    REQUIRE(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(out, PATH_MAX, "%s/../helpers/fake_nvml.so", dirname(self));
}

TEST(gpus_are_those_of_the_replicas_processes)
{
    char library[PATH_MAX], lines[PATH_MAX + 16], text[400];
    fake_library(library);
    setenv("ADAPTDL_NVML", library, 1);
    OPEN();
    snprintf(lines, sizeof lines, "%s/gpus", site->state);
    setenv("FAKE_NVML", lines, 1);
    CHECK_OK(adlt_start(site, "job", 1, 3, "sh -c 'echo pid $$; exec sleep 1000' & wait"));
    long ids[3];
    for (int i = 0; i < 3; i++) {
        CHECK(adlt_wait_log(site, "job", 1, i, "\n"));
        REQUIRE(sscanf(adlt_log(site, "job", 1, i), "pid %ld", &ids[i]) == 1);
    }
    snprintf(text, sizeof text, "0 %ld 50 1000\n1 %ld 25 200\n1 %ld 0 30\n1 1 99 5000\n", ids[0],
             ids[0], ids[1]);
    put(site->state, "gpus", text);
    adli_member_use use = use_of(site, 0); /* on two devices */
    CHECK_NEAR(use.gpus, 0.75, 1e-9);
    CHECK_INT(use.gpu_memory_bytes, 1200);
    use = use_of(site, 1); /* there, and idle */
    CHECK_NEAR(use.gpus, 0, 0);
    CHECK_INT(use.gpu_memory_bytes, 30);
    use = use_of(site, 2); /* uses none */
    CHECK(isnan(use.gpus) && use.gpu_memory_bytes == -1 && use.cpu_s >= 0);

    snprintf(text, sizeof text, "0 %ld -1 40\n", ids[2]); /* only the device says how busy it is */
    put(site->state, "gpus", text);
    use = use_of(site, 2);
    CHECK_NEAR(use.gpus, 0.4, 1e-9);
    CHECK_INT(use.gpu_memory_bytes, -1);
    snprintf(text, sizeof text, "0 %ld -1 40\n0 %ld -1 40\n", ids[2],
             ids[1]); /* and whose is it? */
    put(site->state, "gpus", text);
    use = use_of(site, 2);
    CHECK(isnan(use.gpus));
    unsetenv("FAKE_NVML");
    unsetenv("ADAPTDL_NVML");
    CLOSE();
}

TEST(without_the_library_gpus_are_unknown)
{
    adli_nvml *nvml;
    CHECK_FAILS(adli_nvml_open("/no/libnvidia-ml.so.1", &nvml), ADL_ENOENT,
                "/no/libnvidia-ml.so.1");
    CHECK(!nvml);
    CHECK_FAILS(adli_nvml_open("libm.so.6", &nvml), ADL_ENOENT, "NVML: a function is missing");
    adli_nvml_free(NULL);
    setenv("ADAPTDL_NVML", "/no/libnvidia-ml.so.1", 1);
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 1, "sleep 1000"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_READY));
    adli_member_use use = use_of(site, 0);
    CHECK(isnan(use.gpus) && use.gpu_memory_bytes == -1 && use.memory_bytes >= 0);
    unsetenv("ADAPTDL_NVML");
    CLOSE();
}
